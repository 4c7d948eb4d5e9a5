//! The training loop: step, evaluate, save, resume, signals, guards.
