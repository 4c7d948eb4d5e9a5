run preprocess_data "$@"
