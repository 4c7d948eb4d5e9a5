//! The mock of NVRTC refuses what the compiler refuses: options, chips, files that are not given.

#![allow(clippy::unwrap_used)] // a test

mod common;

use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

use ferrotron_cuda::{Compiler, Environment, Target};
use ferrotron_cuda_kernels::{Cubin, Ptx, names};
use ferrotron_cuda_sys::{NVRTC_ERROR_INVALID_PROGRAM, Nvrtc};

/// Compiles a source with files by the mock; code and log.
fn compile(nvrtc: &Nvrtc, source: &str, files: &[(&CStr, &CStr)], options: &[&CStr]) -> (i32, String) {
    let source = CString::new(source).unwrap();
    let (names, texts): (Vec<*const c_char>, Vec<*const c_char>) =
        files.iter().map(|(name, text)| (name.as_ptr(), text.as_ptr())).unzip();
    let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let (mut program, mut size) = (std::ptr::null_mut(), 0);
    let n = files.len() as i32;
    // SAFETY: C strings, arrays of the lengths stated, out-parameters, a buffer of the size that the library tells.
    unsafe {
        let name = c"main.cu".as_ptr();
        let made = (nvrtc.nvrtcCreateProgram)(&mut program, source.as_ptr(), name, n, texts.as_ptr(), names.as_ptr());
        assert_eq!(made, 0);
        let code = (nvrtc.nvrtcCompileProgram)(program, options.len() as i32, options.as_ptr());
        assert_eq!((nvrtc.nvrtcGetProgramLogSize)(program, &mut size), 0);
        let mut log = vec![0u8; size];
        assert_eq!((nvrtc.nvrtcGetProgramLog)(program, log.as_mut_ptr().cast()), 0);
        let mut gone = program;
        assert_eq!(((nvrtc.nvrtcDestroyProgram)(&mut gone), gone.is_null()), (0, true));
        assert_eq!((nvrtc.nvrtcGetProgramLogSize)(program, &mut size), NVRTC_ERROR_INVALID_PROGRAM);
        (code, CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap().to_string())
    }
}

#[test]
fn what_the_compiler_refuses_is_refused() {
    let home = common::home("nvrtc");
    let library = Environment::only(&home).nvrtc(13).open().unwrap();
    let nvrtc = Nvrtc::load(&[Arc::new(library)]).unwrap();
    let options = [c"--gpu-architecture=sm_90", c"-std=c++17"];
    let source = "#include \"a.cu\"\n#ifdef CUDA_EMULATOR\n#include \"emulator.h\"\n#endif\nKERNEL f(Out y) {}\n";
    let file = (c"a.cu", c"KERNEL g() {}\n");
    assert_eq!(compile(&nvrtc, source, &[file], &options), (0, String::new()));
    let missing = (6, "main.cu(1): catastrophic error: cannot open source file \"a.cu\"".to_string());
    assert_eq!(compile(&nvrtc, source, &[], &options), missing);
    let inner = compile(&nvrtc, source, &[(c"a.cu", c"\n#include <cuda_fp16.h>\n")], &options).1;
    assert_eq!(inner, "a.cu(2): catastrophic error: cannot open source file \"cuda_fp16.h\"");
    for (options, words) in [
        (&[c"--gpu-architecture=sm_77"][..], "nvrtc: error: invalid value for --gpu-architecture (-arch)"),
        (&[c"-std=c++17"], "nvrtc: error: invalid value for --gpu-architecture (-arch)"),
        (&[c"--gpu-architecture=sm_90", c"-I/usr/include"], "nvrtc: error: unrecognized option -I/usr/include found"),
    ] {
        assert_eq!(compile(&nvrtc, source, &[file], options), (5, words.to_string()));
    }

    let compiler = Compiler::load(&Environment::only(&home), 12).unwrap();
    assert_eq!((compiler.name(), compiler.version()), ("NVRTC 12.4".into(), (12, 4)));
    let e = Compiler::load(&Environment::only(&home), 11).err().unwrap();
    assert_eq!(e, "NVRTC 12.4 makes code that a driver for CUDA 11 does not read");
    // code for 8.9 runs on 8.9, that for 8.7 on 8.8; none for 10.0 yet
    let chips = [(8, 9), (8, 8), (9, 0), (10, 0)].map(|c| compiler.chip_for(c).ok());
    assert_eq!(chips, [Some(89), Some(87), Some(90), None]);
    let cubin = Cubin::read(&compiler.compile(Target::Chip(80)).unwrap().image).unwrap();
    let mut all: Vec<&str> = names().collect();
    let ptx = compiler.compile(Target::Ptx(80)).unwrap().image;
    let ptx = Ptx::read(std::str::from_utf8(&ptx).unwrap()).unwrap();
    for (chip, mut kernels) in [(cubin.chip, cubin.kernels), (ptx.chip, ptx.kernels)] {
        kernels.sort();
        all.sort();
        assert_eq!((chip, kernels.iter().map(String::as_str).collect::<Vec<_>>()), (80, all.clone()));
    }
    let e = compiler.compile(Target::Chip(123)).unwrap_err();
    assert!(
        e.starts_with("NVRTC 12.4: nvrtcCompileProgram for sm_123: 5 NVRTC_ERROR_INVALID_OPTION\nnvrtc: error: "),
        "{e}"
    );
    common::remove(&home);
}
