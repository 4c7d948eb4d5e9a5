//! The binaries: pretrain_gpt, preprocess_data, ferrotron.
