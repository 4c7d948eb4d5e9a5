//! Checkpoints: sharded safetensors with a manifest, crash-safe, loadable under any layout.
