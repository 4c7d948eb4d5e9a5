//! Model families: configuration, blocks, names, presets.
