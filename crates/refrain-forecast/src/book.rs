//! The examples in Rust of the book in `docs/` and of the READMEs, as doctests.

macro_rules! pages {
    ($($name:ident $page:literal;)*) => {$(
        #[doc = include_str!($page)]
        struct $name;
    )*};
}

pages! {
    Readme "../../../README.md";
    RefrainReadme "../../refrain/README.md";
    NnReadme "../../refrain-nn/README.md";
    Introduction "../../../docs/introduction.md";
    Start "../../../docs/start.md";
    Tensors "../../../docs/tensors.md";
    Gradients "../../../docs/autograd.md";
    Models "../../../docs/models.md";
    Recording "../../../docs/recording.md";
    CustomOp "../../../docs/custom-op.md";
    Gpu "../../../docs/gpu.md";
    Simulator "../../../docs/simulator.md";
    OwnCsv "../../../docs/own-csv.md";
    RaggedSeries "../../../docs/ragged-series.md";
    HuggingFace "../../../docs/hugging-face.md";
    ComingFrom "../../../docs/coming-from.md";
}
