//! Codes of CUDA, NCCL and the GPU's driver in words: `ferrotron explain`.

use ferrotron_cuda_sys::code;
use ferrotron_nccl_sys as nccl;

/// Names of the driver's codes that a training meets.
const NAMES: &[(i32, &str)] = &[
    (code::INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"),
    (code::OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"),
    (code::NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"),
    (code::NO_DEVICE, "CUDA_ERROR_NO_DEVICE"),
    (code::INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"),
    (code::INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"),
    (code::INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (code::ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"),
    (218, "CUDA_ERROR_INVALID_PTX"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    (code::INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"),
    (code::NOT_FOUND, "CUDA_ERROR_NOT_FOUND"),
    (code::ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    (718, "CUDA_ERROR_INVALID_PC"),
    (719, "CUDA_ERROR_LAUNCH_FAILED"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (code::STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (code::STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    (code::STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"),
    (code::GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"),
];

/// Results of NCCL.
const NCCL: &[(i32, &str)] = &[
    (1, "ncclUnhandledCudaError"),
    (2, "ncclSystemError"),
    (3, "ncclInternalError"),
    (nccl::ncclInvalidArgument, "ncclInvalidArgument"),
    (nccl::ncclInvalidUsage, "ncclInvalidUsage"),
    (nccl::ncclRemoteError, "ncclRemoteError"),
    (8, "ncclTimeout"),
];

/// What the GPU's kernel driver writes to the system's log (`dmesg | grep Xid`), by number.
const XIDS: &[(u32, &str)] = &[
    (
        13,
        "a kernel broke a rule of the GPU: as CUDA's 700 or 719; if other jobs fail on this GPU too, the GPU is at fault",
    ),
    (31, "a kernel touched memory that is not its own: as CUDA's 700; please report it"),
    (43, "the job's work on the GPU was stopped after an error of its own: the job's log says which"),
    (45, "the job was ended and its work taken off the GPU: another cause came first"),
    (48, "an uncorrectable memory error: drain the host, reset the GPU, and see nvidia-smi -q -d ECC,ROW_REMAPPER"),
    (62, "the GPU's own processor stopped: reset the GPU; if it comes again, replace it"),
    (63, "a row of memory was put out of use: reset the GPU when the job is done"),
    (64, "a row of memory could not be put out of use: reset the GPU; if it comes again, replace it"),
    (74, "an NVLink has an error: nvidia-smi nvlink -e names it; reset the GPU, and look at its seat and switch"),
    (79, "the GPU is gone from the bus: power, heat or its seat; restart the host, and if it comes again replace it"),
    (92, "many correctable memory errors: look at nvidia-smi -q -d ECC, and plan to replace the GPU"),
    (94, "a memory error hit one job only: start that job again, and reset the GPU when it is convenient"),
    (95, "a memory error may have hit all jobs of the GPU: drain the host and reset the GPU"),
    (119, "the GPU's system processor does not answer: reset the GPU or restart the host; a newer driver may help"),
    (120, "the GPU's system processor failed: reset the GPU or restart the host; a newer driver may help"),
    (121, "an error of the link between processor and GPU was corrected; if it comes often, have it looked at"),
    (140, "memory errors that could not be put out of use: drain the host and reset the GPU"),
];

/// One line for each code in the words, which may be a whole message: names (`CUDA_ERROR_ILLEGAL_ADDRESS`,
/// `ncclRemoteError`), numbers behind what they are of (`cuda:700`, `nccl:6`), and what the system's log says
/// (`Xid (PCI:0000:3b:00): 79`, `xid:79`).
pub fn explain<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut lines = vec![];
    let mut add = |line: String| {
        if !lines.contains(&line) {
            lines.push(line);
        }
    };
    for text in words {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != ':' && c != '_') {
            let word = word.trim_matches(':');
            let (kind, number) = word.split_once(':').unwrap_or(("", word));
            match (kind.to_ascii_lowercase().as_str(), number.parse::<u32>()) {
                ("cuda", Ok(n)) => add(cuda(n as i32)),
                ("nccl", Ok(n)) => add(of_nccl(n as i32)),
                ("xid", Ok(n)) => add(xid(n)),
                _ => {
                    let named = |names: &[(i32, &str)]| {
                        names.iter().find(|(_, n)| n.eq_ignore_ascii_case(word)).map(|(code, _)| *code)
                    };
                    named(NAMES).map(cuda).or_else(|| named(NCCL).map(of_nccl)).into_iter().for_each(&mut add);
                }
            }
        }
        logged(text).for_each(|n| add(xid(n)));
    }
    lines
}

/// Numbers of the system's log: `Xid (PCI:0000:3b:00): 79, pid=...`.
fn logged(text: &str) -> impl Iterator<Item = u32> + '_ {
    text.split("Xid (").skip(1).filter_map(|rest| {
        let digits = rest.split_once("): ")?.1;
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    })
}

fn cuda(n: i32) -> String {
    let name = NAMES.iter().find(|(c, _)| *c == n).map_or("an error of CUDA", |(_, name)| name);
    format!("{n} {name}: {}", code::advice(n))
}

fn of_nccl(n: i32) -> String {
    let name = NCCL.iter().find(|(c, _)| *c == n).map_or("a result of NCCL", |(_, name)| name);
    format!("{n} {name}: {}", nccl::advice(n))
}

fn xid(n: u32) -> String {
    let text = XIDS.iter().find(|(c, _)| *c == n).map(|(_, text)| *text);
    format!("Xid {n}: {}", text.unwrap_or("an event of the GPU's driver: see NVIDIA's list of Xid errors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_whole_messages() {
        let first = |w: &str| explain([w]).first().cloned().unwrap_or_default();
        assert!(first("cuda:700").starts_with("700 CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory"));
        assert!(first("CUDA_ERROR_ECC_UNCORRECTABLE").contains("drain the host"));
        assert!(first("nccl:6").starts_with("6 ncclRemoteError: another rank has failed"));
        assert!(first("Xid:31").contains("not its own") && first("xid:9999").contains("NVIDIA's list"));
        let log =
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus. NVRM: Xid (PCI:0000:3b:00): 79, again";
        assert_eq!(explain([log]).len(), 1, "{:?}", explain([log]));
        let failed = "cuStreamSynchronize: 719 CUDA_ERROR_LAUNCH_FAILED; ncclSystemError, see ncclSystemError";
        let lines = explain([failed]);
        assert!(lines.len() == 2 && lines[0].contains("Xid in dmesg") && lines[1].contains("/dev/shm"), "{lines:?}");
        for nothing in ["", "hello", "700", "cuda:", "cuda:x", "nccl", "Xid (", "Xid (a): b", "PCI:0000:3b:00"] {
            assert_eq!(first(nothing), "", "{nothing}");
        }
    }
}
