run pretrain_gpt "$@"
