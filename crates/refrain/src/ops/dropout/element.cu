// One element of dropout: x times the scale if it is kept, otherwise 0; plus the residual if SUM.
template <bool SUM, typename C> DEVICE C dropped(bool kept, C x, C residual, C scale) {
    C branch = kept ? x * scale : (C)0;
    return SUM ? residual + branch : branch;
}
