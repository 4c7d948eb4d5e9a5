//! Error codes with what to try. The driver has names and texts of its own; these say what a user can do.

use std::ffi::CStr;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $theirs:literal = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: i32 = $value;)*
        /// The codes above in the driver's words.
        pub const NAMES: &[(&CStr, i32)] = &[$(($theirs, $value)),*];
    };
}

codes! {
    /// Success.
    SUCCESS c"CUDA_SUCCESS" = 0;
    /// An argument is wrong.
    INVALID_VALUE c"CUDA_ERROR_INVALID_VALUE" = 1;
    /// The device's memory is used up.
    OUT_OF_MEMORY c"CUDA_ERROR_OUT_OF_MEMORY" = 2;
    /// `cuInit` has not been called.
    NOT_INITIALIZED c"CUDA_ERROR_NOT_INITIALIZED" = 3;
    /// No device is there.
    NO_DEVICE c"CUDA_ERROR_NO_DEVICE" = 100;
    /// No such device.
    INVALID_DEVICE c"CUDA_ERROR_INVALID_DEVICE" = 101;
    /// The kernels are not in a form that the driver knows.
    INVALID_IMAGE c"CUDA_ERROR_INVALID_IMAGE" = 200;
    /// No context is current on this thread.
    INVALID_CONTEXT c"CUDA_ERROR_INVALID_CONTEXT" = 201;
    /// The kernels are for other chips.
    NO_BINARY_FOR_GPU c"CUDA_ERROR_NO_BINARY_FOR_GPU" = 209;
    /// An uncorrectable memory error.
    ECC_UNCORRECTABLE c"CUDA_ERROR_ECC_UNCORRECTABLE" = 214;
    /// The driver's compiler refuses the PTX.
    INVALID_PTX c"CUDA_ERROR_INVALID_PTX" = 218;
    /// The driver has no compiler.
    JIT_COMPILER_NOT_FOUND c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND" = 221;
    /// The PTX is of a later version than the driver knows.
    UNSUPPORTED_PTX_VERSION c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION" = 222;
    /// The driver may not compile.
    JIT_COMPILATION_DISABLED c"CUDA_ERROR_JIT_COMPILATION_DISABLED" = 223;
    /// The kernels are none.
    INVALID_SOURCE c"CUDA_ERROR_INVALID_SOURCE" = 300;
    /// A handle is of nothing.
    INVALID_HANDLE c"CUDA_ERROR_INVALID_HANDLE" = 400;
    /// No such name.
    NOT_FOUND c"CUDA_ERROR_NOT_FOUND" = 500;
    /// Not done yet.
    NOT_READY c"CUDA_ERROR_NOT_READY" = 600;
    /// A kernel touched memory that is not there.
    ILLEGAL_ADDRESS c"CUDA_ERROR_ILLEGAL_ADDRESS" = 700;
    /// A kernel failed.
    LAUNCH_FAILED c"CUDA_ERROR_LAUNCH_FAILED" = 719;
    /// Not while a stream is captured.
    STREAM_CAPTURE_UNSUPPORTED c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" = 900;
    /// Something before has spoilt the capture.
    STREAM_CAPTURE_INVALIDATED c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" = 901;
    /// The stream that ends a capture did not begin it.
    STREAM_CAPTURE_UNMATCHED c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" = 903;
    /// A stream takes part that nobody waits for.
    STREAM_CAPTURE_UNJOINED c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED" = 904;
    /// A captured stream waits for work outside.
    STREAM_CAPTURE_ISOLATION c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION" = 905;
    /// An event of a capture is not for this.
    CAPTURED_EVENT c"CUDA_ERROR_CAPTURED_EVENT" = 907;
    /// Two graphs are not of one shape.
    GRAPH_EXEC_UPDATE_FAILURE c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" = 910;
}

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
        &[INVALID_IMAGE, INVALID_PTX, UNSUPPORTED_PTX_VERSION, INVALID_SOURCE],
        "the driver cannot take the kernels: install a driver for CUDA 12.0 or later (525)",
    ),
    (&[NO_BINARY_FOR_GPU], "the kernels are for other chips: a newer driver may compile them for this one"),
    (
        &[JIT_COMPILER_NOT_FOUND],
        "the driver's compiler, libnvidia-ptxjitcompiler.so.1, is missing: in a container show it with \
         NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    (&[JIT_COMPILATION_DISABLED], "CUDA_DISABLE_PTX_JIT forbids the driver to compile"),
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
    (&[LAUNCH_FAILED], "a kernel failed: look for an Xid in dmesg, and run again with CUDA_LAUNCH_BLOCKING=1"),
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
