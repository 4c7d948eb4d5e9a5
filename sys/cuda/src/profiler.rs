//! The driver's switch for profilers: `cudaProfiler.h`.

use crate::types::CUresult;

ferrotron_dynlib::table! {
    /// What a profiler listens to that captures only what a program asks for (`nsys profile --capture-range=cudaProfilerApi`).
    /// Without a profiler the calls do nothing. A context must be current.
    pub struct Profiler {
        required {
            /// What follows is captured.
            fn cuProfilerStart() -> CUresult;
            /// No more.
            fn cuProfilerStop() -> CUresult;
        }
        optional {}
    }
}
