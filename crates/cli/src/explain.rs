//! `ferrotron explain`: codes of vendors in words.

/// Prints a line for each code in the words; gives the exit code.
pub fn run(words: &[String]) -> u8 {
    let usage = "usage: ferrotron explain CODE ...\n  \
                 Ascend: codes of AscendCL and aclnn (507015), texts (EI0002), results of HCCL (hccl:9, HCCL_E_TIMEOUT)\n  \
                 NVIDIA: codes of CUDA (cuda:700, CUDA_ERROR_ILLEGAL_ADDRESS), results of NCCL (nccl:6, ncclRemoteError), \
                 Xids (xid:79)\n  or a message with codes in it";
    if words.is_empty() || words.iter().any(|w| w == "--help" || w == "-h") {
        println!("{usage}");
        return u8::from(words.is_empty()) * 2;
    }
    let lines = ferrotron_backends::explain(words.iter().map(String::as_str));
    if lines.is_empty() {
        eprintln!("ferrotron explain: no code that is known stands in these words\n{usage}");
        return 1;
    }
    lines.iter().for_each(|line| println!("{line}"));
    0
}
