//! The emulator finds what it says it finds, whatever the order of threads; and right kernels give right numbers.
#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::path::Path;
use std::sync::Mutex;

use ferrotron_base::philox::philox4x32;
use ferrotron_cuda_emulator::{BuildError, Emulator, build, default_folder};

const THREADS: usize = 256;

/// Barriers are left out of the whole process.
static BARRIERS: Mutex<()> = Mutex::new(());

/// The test's kernels, or `None`, loudly, without g++.
fn emulator() -> Option<Emulator> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    match build(&folder, &default_folder().unwrap()) {
        Ok(library) => Some(Emulator::load(&library).unwrap()),
        Err(e @ BuildError::NoCompiler) => {
            ferrotron_cuda_emulator::say_not_run("the emulator of CUDA", &e);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[derive(Default)]
struct Arguments(Vec<u8>);

impl Arguments {
    fn input<T>(self, at: &[T], dtype: u32) -> Arguments {
        self.operand(at.as_ptr() as u64, at.len(), dtype)
    }

    fn output<T>(self, at: &mut [T], dtype: u32) -> Arguments {
        self.operand(at.as_mut_ptr() as u64, at.len(), dtype)
    }

    fn operand(mut self, at: u64, n: usize, dtype: u32) -> Arguments {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(at.to_ne_bytes());
        self.0.extend((n as u64).to_ne_bytes());
        self.0.extend(dtype.to_ne_bytes());
        self.0.extend([0; 4]);
        self
    }
}

fn launch(e: &Emulator, name: &str, shared: usize, arguments: &Arguments, seed: u64) -> Result<(), String> {
    // SAFETY: the callers' operands are vectors of the stated lengths, which nobody reads meanwhile.
    unsafe { e.launch(name, [1; 3], [THREADS as u32, 1, 1], shared, &arguments.0, seed) }
}

#[test]
fn right_kernels_give_right_numbers_in_any_order() {
    let Some(e) = emulator() else { return };
    let _all = BARRIERS.lock().unwrap();
    let x: Vec<f32> = (0..THREADS).map(|i| (i % 7) as f32 - 3.0).collect();
    for seed in 0..32 {
        let (mut y, mut warps, mut out) = (vec![0f32; THREADS], [0f32; 8], [0f32; 3]);
        launch(&e, "reversed", 0, &Arguments::default().input(&x, 0).output(&mut y, 0), seed).unwrap();
        assert!(y.iter().zip(x.iter().rev()).all(|(a, b)| a == b));
        launch(&e, "sums", 0, &Arguments::default().input(&x, 0).output(&mut warps, 0).output(&mut out, 0), seed)
            .unwrap();
        let sums: Vec<f32> = x.chunks(32).map(|c| c.iter().sum()).collect();
        assert_eq!((&warps[..], out), (&sums[..], [sums.iter().sum(), 3.0, 1.0]));
    }
}

#[test]
fn every_mistake_is_named_whatever_the_order() {
    let Some(e) = emulator() else { return };
    let mistakes = [
        ("reads_unwritten", "reads shared memory that no thread of the block has written"),
        ("writes_what_is_read", ", with no barrier between"),
        ("some_miss_the_barrier", "40 of 256 threads ended, the others wait at the barrier "),
        ("two_barriers", "waits at the barrier "),
        ("some_miss_the_shuffle", "lanes wait at a shuffle that others of their warp do not reach"),
        ("reads_beyond", "thread (255, 0, 0) reads element 256 of an operand of 256"),
        ("writes_beyond", "thread (255, 0, 0) writes element 256 of an operand of 256"),
        ("beyond_shared", "thread (255, 0, 0) touches element 256 of a shared array of 256"),
        ("beyond_dynamic", "touches dynamic shared memory "),
        ("writes_twice", "which another thread wrote too"),
    ];
    for (name, words) in mistakes {
        let inputs = name == "writes_what_is_read" || name == "reads_beyond";
        for seed in 0..16 {
            let (x, mut y) = (vec![1f32; THREADS], vec![0f32; THREADS]);
            let mut arguments = Arguments::default();
            if inputs {
                arguments = arguments.input(&x, 0);
            }
            let error = launch(&e, name, 4 * 200, &arguments.output(&mut y, 0), seed).unwrap_err();
            assert!(error.starts_with(&format!("{name}: block (0, 0, 0): ")) && error.contains(words), "{error}");
        }
    }
    // that one runs well when every thread reads before its neighbour writes, which some order shows
    let errors: Vec<String> = (0..16)
        .filter_map(|seed| {
            let mut x = vec![1f32; THREADS];
            let at = x.as_mut_ptr() as u64;
            let arguments = Arguments::default().operand(at, THREADS, 0).operand(at, THREADS, 0);
            launch(&e, "reads_what_another_wrote", 0, &arguments, seed).err()
        })
        .collect();
    assert!(errors.len() >= 8 && errors[0].contains(", which another thread wrote"), "{errors:?}");
}

#[test]
fn a_barrier_left_out_is_noticed_in_every_order() {
    let Some(e) = emulator() else { return };
    let _all = BARRIERS.lock().unwrap();
    let (x, mut y) = (vec![1f32; THREADS], vec![0f32; THREADS]);
    let arguments = Arguments::default().input(&x, 0).output(&mut y, 0);
    launch(&e, "reversed", 0, &arguments, 1).unwrap();
    let site = "mistakes.cu:8";
    assert!(e.sites().iter().any(|s| s == site), "{:?}", e.sites());
    e.omit(site);
    let errors: Vec<String> = (0..16).filter_map(|seed| launch(&e, "reversed", 0, &arguments, seed).err()).collect();
    e.omit("");
    assert_eq!(errors.len(), 16);
    for error in errors {
        assert!(
            error.contains("no barrier between") || error.contains("no thread of the block has written"),
            "{error}"
        );
    }
}

#[test]
fn launches_that_cannot_be_are_refused() {
    let Some(e) = emulator() else { return };
    let mut y = vec![0f32; THREADS];
    let arguments = Arguments::default().output(&mut y, 0);
    assert_eq!(launch(&e, "nothing", 0, &arguments, 0).unwrap_err(), "there is no kernel nothing");
    let error = launch(&e, "sums", 0, &arguments, 0).unwrap_err();
    assert_eq!(error, "sums: 24 bytes of arguments, it takes 72");
    // SAFETY: nothing is run.
    let error = unsafe { e.launch("writes_twice", [1; 3], [40, 1, 1], 0, &arguments.0, 0) }.unwrap_err();
    assert!(error.contains("not whole warps"), "{error}");
    let kernel = e.kernels().iter().find(|k| k.name == "random").unwrap();
    let want = [('o', 0, 24), ('v', 24, 8), ('v', 32, 4), ('v', 36, 4), ('v', 40, 4), ('v', 44, 4)];
    assert_eq!((kernel.bytes, &kernel.arguments[..]), (48, &want[..]));
}

#[test]
fn storage_and_random_numbers_are_those_of_the_host() {
    let Some(e) = emulator() else { return };
    // every half and every bf16 there is, then values around the places where rounding changes
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let mut wide = vec![0f32; all.len()];
    let mut odd =
        vec![65504.0, 65519.99, 65520.0, 1e9, f32::INFINITY, 2f32.powi(-25), 2f32.powi(-25) * 1.001, 6e-5, 6.1e-5];
    odd.extend((0..4000u32).map(|i| f32::from_bits(philox4x32(7, [i, 0, 0, 0])[0])));
    odd.extend((0..4000).map(|i| half::f16::from_bits(i * 7).to_f32() * (1.0 + 2f32.powi(-11))));
    odd.extend(odd.clone().iter().map(|v| -v));
    let mut narrow = vec![0u16; odd.len()];
    for (dtype, decode, encode) in [
        (
            1,
            (|b| half::bf16::from_bits(b).to_f32()) as fn(u16) -> f32,
            (|v| half::bf16::from_f32(v).to_bits()) as fn(f32) -> u16,
        ),
        (2, |b| half::f16::from_bits(b).to_f32(), |v| half::f16::from_f32(v).to_bits()),
    ] {
        launch(&e, "store_as", 0, &Arguments::default().input(&all, dtype).output(&mut wide, 0), 0).unwrap();
        for (&bits, &v) in all.iter().zip(&wide) {
            assert!(v.to_bits() == decode(bits).to_bits() || v.is_nan() && decode(bits).is_nan(), "{dtype}: {bits:#x}");
        }
        launch(&e, "store_as", 0, &Arguments::default().input(&odd, 0).output(&mut narrow, dtype), 0).unwrap();
        for (&v, &bits) in odd.iter().zip(&narrow) {
            assert!(bits == encode(v) || v.is_nan() && decode(bits).is_nan(), "{dtype}: {v:e} gives {bits:#x}");
        }
    }
    let counter = [11u32, 22, 33, 44];
    let mut out = [0u32];
    let mut arguments = Arguments::default().output(&mut out, 3);
    arguments.0.extend(0x299f_31d0_a409_3822u64.to_ne_bytes());
    counter.iter().for_each(|c| arguments.0.extend(c.to_ne_bytes()));
    // SAFETY: as in `launch`; one element, one warp that writes the same number.
    unsafe { e.launch("random", [1; 3], [32, 1, 1], 0, &arguments.0, 0) }.unwrap();
    assert_eq!(out[0], philox4x32(0x299f_31d0_a409_3822, counter)[0]);
}
