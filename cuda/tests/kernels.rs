//! How kernels reach the GPU: fatbin, PTX, NVRTC in this order, what is kept of the last, and what a user reads when a form
//! does not serve. Faults are a device's, so each test has devices of its own; the chip is all devices', so tests that
//! change it take turns with the others.

#![allow(clippy::unwrap_used)] // a test

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrotron_cuda::{Cuda, CudaBackend, CudaDevice, Environment, KernelForm, KernelOptions};
use ferrotron_device::{Backend, DType, Device, Pool, StreamRole, host};

static TURN: Mutex<()> = Mutex::new(());

/// An installation, the mock's controls, and a folder for what is compiled.
struct Rig {
    home: PathBuf,
    cache: PathBuf,
    control: common::Control,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    fn new(name: &str) -> Option<Rig> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let home = common::kernels().then(|| common::home(name))?;
        Some(Rig { cache: home.join("cache"), home, control: common::control(), _turn })
    }

    fn open(&self, ordinal: usize, form: Option<KernelForm>) -> Result<CudaDevice, String> {
        self.open_with(ordinal, KernelOptions { form, cache: Some(self.cache.clone()) })
    }

    fn open_with(&self, ordinal: usize, options: KernelOptions) -> Result<CudaDevice, String> {
        let cuda = Arc::new(Cuda::load(&Environment::only(&self.home)).map_err(|e| e.to_string())?);
        let opened = CudaDevice::open_with(cuda, ordinal, None, &options).map_err(|e| e.to_string());
        self.control.no_faults(ordinal as u32);
        opened
    }

    /// What a device says of its kernels: after "own", and further lines.
    fn said(&self, ordinal: usize, form: Option<KernelForm>) -> String {
        let device = self.open(ordinal, form).unwrap();
        assert_eq!(sum(device), [1.5, 3.5, 5.5]);
        let device = self.open(ordinal, form).unwrap();
        device
            .describe()
            .join("\n")
            .split_once("by kernels of our own from ")
            .unwrap()
            .1
            .replace(cache_of(self), "CACHE")
    }

    fn cached(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = std::fs::read_dir(&self.cache).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    }
}

fn cache_of(rig: &Rig) -> &str {
    rig.cache.to_str().unwrap()
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: no arguments but a number.
        unsafe { (self.control.own.ferrotronMockChip)(90) };
        common::remove(&self.home);
    }
}

/// A kernel runs: [1, 2, 3] + [0.5, 1.5, 2.5].
fn sum(device: CudaDevice) -> Vec<f32> {
    let device: Arc<dyn Device> = Arc::new(device);
    let s = device.stream(StreamRole::Compute).unwrap();
    let pool = Pool::new(device.clone(), s.clone(), 8 << 20, true).unwrap();
    let new = || pool.alloc(DType::F32, [3]).unwrap();
    let (mut a, mut b, mut y) = (new(), new(), new());
    host::write_f32(&*device, &s, &[1.0, 2.0, 3.0], &mut a).unwrap();
    host::write_f32(&*device, &s, &[0.5, 1.5, 2.5], &mut b).unwrap();
    device.ops().add(&s, &a, &b, &mut y).unwrap();
    host::read_f32(&*device, &s, &y).unwrap()
}

#[test]
fn machine_code_comes_first_and_chips_without_get_ptx() {
    let Some(rig) = Rig::new("forms-chips") else { return };
    for (chip, code) in [(90, "9.0"), (80, "8.0"), (89, "8.0"), (120, "12.0")] {
        // SAFETY: no arguments but a number.
        unsafe { (rig.control.own.ferrotronMockChip)(chip) };
        assert_eq!(rig.said(0, None), format!("the embedded fatbin (code for compute capability {code})"));
    }
    // by the PTX alone the driver compiles for the chip itself
    // SAFETY: no arguments but a number.
    unsafe { (rig.control.own.ferrotronMockChip)(89) };
    assert_eq!(rig.said(0, Some(KernelForm::Ptx)), "the embedded PTX (code for compute capability 8.9)");
    assert!(!rig.cache.exists(), "nothing was compiled");
}

#[test]
fn each_form_that_is_refused_is_followed_by_the_next() {
    let Some(rig) = Rig::new("forms-order") else { return };
    for code in [200, 209, 218, 221, 222, 223, 300] {
        rig.control.faults(1, &format!("module:fatbin#1={code}"));
        let said = rig.open(1, None).unwrap().describe();
        assert!(said[0].ends_with("from the embedded PTX (code for compute capability 9.0)"), "{said:?}");
        assert!(
            said[1].starts_with(&format!("cuda:1: kernels: the embedded fatbin does not serve: {code} CUDA_ERROR_"))
        );
        assert_eq!(said.len(), 2);
    }
    rig.control.faults(1, "module:fatbin#1=209;module:ptx#1=221");
    let said = rig.open(1, None).unwrap().describe();
    assert!(
        said[0].contains("from NVRTC 12.4, now kept in ") && said[0].ends_with("(code for compute capability 9.0)")
    );
    assert!(
        said[2]
            .contains("the embedded PTX does not serve: 221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND: the driver's compiler")
    );
    assert_eq!(said.len(), 3);
    // a form that loads but lacks a kernel, or whose kernels the driver compiles late and cannot
    rig.control.faults(1, "cuModuleGetFunction#2=500;cuFuncGetAttribute#4=209");
    let said = rig.open(1, None).unwrap().describe();
    assert!(said[0].contains("from NVRTC 12.4, kept in "), "{said:?}");
    assert!(said[1].contains("fatbin does not serve: 500 CUDA_ERROR_NOT_FOUND"), "{said:?}");
    assert!(said[2].contains("PTX does not serve: 209 CUDA_ERROR_NO_BINARY_FOR_GPU"), "{said:?}");
    // what is wrong with the device is not wrong with a form
    rig.control.faults(1, "module:fatbin#1=214");
    let e = rig.open(1, None).err().unwrap();
    assert!(e.starts_with("cuda:1: cuModuleLoadDataEx: 214 CUDA_ERROR_ECC_UNCORRECTABLE"), "{e}");
}

#[test]
fn a_form_that_is_asked_for_is_the_only_one() {
    let Some(rig) = Rig::new("forms-asked") else { return };
    rig.control.faults(2, "module:ptx#1=222");
    let e = rig.open(2, Some(KernelForm::Ptx)).err().unwrap();
    let first = "cuda:2: the kernels cannot be loaded (FERROTRON_CUDA_KERNELS=ptx lets no other form be tried)\n\
                 the embedded PTX: 222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the driver cannot take the kernels";
    assert!(e.starts_with(first) && e.ends_with("\nmodule:ptx is refused on purpose") && !e.contains("fatbin"), "{e}");
    assert_eq!(rig.said(2, Some(KernelForm::Fatbin)), "the embedded fatbin (code for compute capability 9.0)");

    // as the process's variables say, through the backend
    let home = &rig.home;
    let backend = |word: &str| {
        CudaBackend::from_variables(|name| match name {
            "FERROTRON_CUDA_KERNELS" => Some(word.into()),
            "XDG_CACHE_HOME" => Some(home.join("other").into()),
            "CUDA_HOME" => Some(home.into()),
            _ => None,
        })
    };
    let said = backend("nvrtc").open(2).unwrap().describe().concat();
    assert!(
        said.contains(&format!("NVRTC 12.4, now kept in {}/ferrotron/cuda-kernels-", home.join("other").display()))
    );
    let e = backend("sass").open(2).err().unwrap().to_string();
    assert_eq!(e, "cuda:2: FERROTRON_CUDA_KERNELS=sass is none of fatbin, ptx, nvrtc");
}

#[test]
fn what_nvrtc_makes_is_kept_and_made_anew_when_it_is_damaged() {
    let Some(rig) = Rig::new("forms-cache") else { return };
    let nvrtc = Some(KernelForm::Nvrtc);
    let compiles = |expected: bool| {
        rig.control.faults(3, "nvrtc:compile#1=6");
        assert_eq!(rig.open(3, nvrtc).is_err(), expected);
    };
    compiles(true);
    assert!(rig.open(3, nvrtc).unwrap().describe()[0].contains("now kept in "));
    compiles(false);
    let kept = rig.said(3, nvrtc);
    assert!(
        kept.starts_with("NVRTC 12.4, kept in CACHE/cuda-kernels-") && kept.contains("-sm_90-nvrtc_12.4 "),
        "{kept}"
    );
    let [file] = &rig.cached()[..] else { panic!("one file") };
    let whole = std::fs::read(file).unwrap();

    let damaged: [fn(&mut Vec<u8>); 4] =
        [|f| f.truncate(f.len() - 1), |f| f.push(0), |f| *f.last_mut().unwrap() ^= 1, |f| f.clear()];
    for damage in damaged {
        let mut other = whole.clone();
        damage(&mut other);
        std::fs::write(file, &other).unwrap();
        compiles(true);
        assert!(rig.open(3, nvrtc).unwrap().describe()[0].contains("now kept in "));
        assert_eq!(std::fs::read(file).unwrap(), whole);
    }

    // code for another chip of the same family is another file
    // SAFETY: no arguments but a number.
    unsafe { (rig.control.own.ferrotronMockChip)(88) };
    assert!(rig.said(3, nvrtc).contains("-sm_87-nvrtc_12.4 (code for compute capability 8.7)"));
    assert_eq!(rig.cached().len(), 2);
}

#[test]
fn a_cache_that_cannot_be_written_is_a_notice() {
    let Some(rig) = Rig::new("forms-read-only") else { return };
    let forms = |cache: Option<PathBuf>| {
        let options = KernelOptions { form: Some(KernelForm::Nvrtc), cache };
        rig.open_with(4, options).unwrap().describe()
    };
    let notice = "cuda:4: kernels: what NVRTC made cannot be kept, and is made again at the next start: ";
    // a folder of which a part is a file: also for a user who may write everywhere
    std::fs::write(rig.home.join("file"), "").unwrap();
    let said = forms(Some(rig.home.join("file/cache")));
    assert!(said[0].ends_with("from NVRTC 12.4 (code for compute capability 9.0)"), "{said:?}");
    assert!(said[1].starts_with(notice) && said[1].contains("file/cache/cuda-kernels-"), "{said:?}");
    // a folder without the right to write
    let locked = rig.home.join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o555)).unwrap();
    let may_write = std::fs::write(locked.join("try"), "").is_ok();
    let said = forms(Some(locked.clone()));
    assert_eq!(said.len() == 1, may_write, "{said:?}");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = forms(None);
    assert_eq!(said[1], format!("{notice}neither XDG_CACHE_HOME nor HOME is set"));
}

#[test]
fn when_no_form_serves_one_error_names_all() {
    let Some(rig) = Rig::new("forms-none") else { return };
    let refused = "module:fatbin#1=209;module:ptx#1=218";
    let lines = |e: &str| e.lines().map(|l| l.chars().take(60).collect()).collect::<Vec<String>>();

    // the compiler's words
    rig.control.faults(5, &format!("{refused};nvrtc:compile#1=6"));
    let e = rig.open(5, None).err().unwrap();
    assert_eq!(
        lines(&e),
        [
            "cuda:5: the kernels cannot be loaded",
            "the embedded fatbin: 209 CUDA_ERROR_NO_BINARY_FOR_GPU: the k",
            "module:fatbin is refused on purpose",
            "the embedded PTX: 218 CUDA_ERROR_INVALID_PTX: the driver can",
            "module:ptx is refused on purpose",
            "NVRTC: NVRTC 12.4: nvrtcCompileProgram for sm_90: 6 NVRTC_ER",
            "kernels.cu(1): error: made on purpose",
        ]
    );
    // a chip that the compiler does not know
    // SAFETY: no arguments but a number.
    unsafe { (rig.control.own.ferrotronMockChip)(120) };
    rig.control.faults(5, refused);
    let e = rig.open(5, None).err().unwrap();
    assert!(e.contains("\nNVRTC: NVRTC 12.4 does not know compute capability 12.0, only 5.0, 5.2, "), "{e}");
    // code that the driver refuses too
    // SAFETY: no arguments but a number.
    unsafe { (rig.control.own.ferrotronMockChip)(90) };
    rig.control.faults(5, &format!("{refused};module:cubin#1=200"));
    let e = rig.open(5, None).err().unwrap();
    assert!(e.contains("\nNVRTC: 200 CUDA_ERROR_INVALID_IMAGE"), "{e}");
    // no compiler
    std::fs::remove_file(rig.home.join("lib64/libnvrtc.so.12")).unwrap();
    rig.control.faults(5, refused);
    let e = rig.open(5, None).err().unwrap();
    assert!(e.contains("\nNVRTC: cannot load libnvrtc.so.12 or libnvrtc.so\n  searched "), "{e}");
    assert!(Path::new(&rig.home).exists());
}
