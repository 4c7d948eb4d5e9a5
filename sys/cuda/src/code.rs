//! Error codes with what to try. The driver has names and texts of its own; these say what a user can do.

/// Success.
pub const SUCCESS: i32 = 0;
/// An argument is wrong.
pub const INVALID_VALUE: i32 = 1;
/// The device's memory is used up.
pub const OUT_OF_MEMORY: i32 = 2;
/// `cuInit` has not been called.
pub const NOT_INITIALIZED: i32 = 3;
/// No device is there.
pub const NO_DEVICE: i32 = 100;
/// No such device.
pub const INVALID_DEVICE: i32 = 101;
/// The kernels are not in a form that the driver knows.
pub const INVALID_IMAGE: i32 = 200;
/// No context is current on this thread.
pub const INVALID_CONTEXT: i32 = 201;
/// An uncorrectable memory error.
pub const ECC_UNCORRECTABLE: i32 = 214;
/// A handle is of nothing.
pub const INVALID_HANDLE: i32 = 400;
/// No such name.
pub const NOT_FOUND: i32 = 500;
/// Not done yet.
pub const NOT_READY: i32 = 600;
/// A kernel touched memory that is not there.
pub const ILLEGAL_ADDRESS: i32 = 700;

/// Not while a stream is captured.
pub const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
/// Something before has spoilt the capture.
pub const STREAM_CAPTURE_INVALIDATED: i32 = 901;
/// The stream that ends a capture did not begin it.
pub const STREAM_CAPTURE_UNMATCHED: i32 = 903;
/// A stream takes part that nobody waits for.
pub const STREAM_CAPTURE_UNJOINED: i32 = 904;
/// A captured stream waits for work outside.
pub const STREAM_CAPTURE_ISOLATION: i32 = 905;
/// An event of a capture is not for this.
pub const CAPTURED_EVENT: i32 = 907;
/// Two graphs are not of one shape.
pub const GRAPH_EXEC_UPDATE_FAILURE: i32 = 910;

/// What to do about a code.
pub fn advice(code: i32) -> &'static str {
    let found = ADVICE.iter().find(|(codes, _)| codes.contains(&code));
    found.map_or("see the driver's log (dmesg | grep -i nvrm) and the vendor's list of errors", |(_, a)| a)
}

const ADVICE: &[(&[i32], &str)] = &[
    (&[INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND], "a mistake of this program; please report it"),
    (
        &[OUT_OF_MEMORY],
        "lower --micro-batch-size or --seq-length, and look for other processes on the GPU (nvidia-smi)",
    ),
    (&[NO_DEVICE], "nvidia-smi should list a GPU; see CUDA_VISIBLE_DEVICES, and in a container --gpus all"),
    (&[INVALID_DEVICE], "there are fewer GPUs than ranks on this host: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
    (
        &[INVALID_IMAGE, 209, 218, 221, 222],
        "the driver cannot take the kernels: install a driver for CUDA 12.0 or later (525)",
    ),
    (
        &[ECC_UNCORRECTABLE, 226, 227],
        "the GPU's memory or links have an error: drain the host and reset or replace the GPU (nvidia-smi -q -d ECC)",
    ),
    (
        &[ILLEGAL_ADDRESS, 715, 716, 717, 718],
        "a kernel touched memory that is not its own: please report it with this message",
    ),
    (&[701], "a kernel asks for more registers or shared memory than the chip has; please report it"),
    (&[702], "a kernel ran into the display's time limit: train on a GPU without a display"),
    (&[719], "a kernel failed: look for an Xid in dmesg, and run again with CUDA_LAUNCH_BLOCKING=1"),
    (
        &[
            STREAM_CAPTURE_UNSUPPORTED,
            STREAM_CAPTURE_INVALIDATED,
            902,
            STREAM_CAPTURE_UNMATCHED,
            STREAM_CAPTURE_UNJOINED,
            STREAM_CAPTURE_ISOLATION,
            906,
            CAPTURED_EVENT,
            908,
            GRAPH_EXEC_UPDATE_FAILURE,
        ],
        "a CUDA graph cannot be made of this step: run without --enable-cuda-graph and --cuda-graph-impl, and please report it",
    ),
    (&[802], "the system is not ready: start the fabric manager (systemctl start nvidia-fabricmanager)"),
    (&[803], "the driver's library and kernel module differ: reload the module or restart the host"),
    (&[804], "the compatibility libraries do not serve this GPU: install a newer driver"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_advice_of_its_own_or_the_general_one() {
        assert!(advice(OUT_OF_MEMORY).contains("--micro-batch-size") && advice(214).contains("ECC"));
        assert!(advice(12345).contains("dmesg"));
        let mut codes: Vec<i32> = ADVICE.iter().flat_map(|(c, _)| c.iter().copied()).collect();
        let n = codes.len();
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), n);
    }
}
