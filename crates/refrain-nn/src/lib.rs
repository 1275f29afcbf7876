//! Layers, optimisers, schedules and checkpoints.
