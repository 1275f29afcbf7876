//! Time-series forecasting.
