//! Files that are cut, flipped or made to do harm: one error that names the file, never a panic, a hang or much memory.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::path::Path;

use common::{Py, Temp, copy, dict, golden, pickle, s, torch_file, write, zip};
use ferrotron_base::ShardSpec;
use ferrotron_foreign::Megatron;
use ferrotron_foreign::pickle::{Value, load};
use ferrotron_foreign::torch_zip::Archive;

/// A checkpoint of one shard with this file; what is wrong with it.
fn error(name: &str, file: &[u8]) -> String {
    let t = Temp::new(name);
    write(&t.0, "iter_0000001/mp_rank_00/model_optim_rng.pt", file);
    write(&t.0, "latest_checkpointed_iteration.txt", b"1");
    read_all(&t.0).unwrap_err()
}

/// Opens a checkpoint and reads everything.
fn read_all(dir: &Path) -> Result<usize, String> {
    let checkpoint = Megatron::open(dir, None).map_err(|e| e.to_string())?;
    let all: Vec<(String, Vec<usize>)> = checkpoint.parameters().map(|(n, s)| (n.into(), s.into())).collect();
    let mut read = 0;
    for (name, shape) in all {
        let spec = ShardSpec::whole(name, &shape);
        // damaged shapes may be huge; nobody asks for more than the model has
        let n = spec.local_numel().min(1 << 16);
        let mut out = vec![0.0; n];
        checkpoint.read_f32(&spec, 0..n, &mut out).map_err(|e| e.to_string())?;
        read += n;
    }
    Ok(read)
}

fn model(items: &[(&str, Py)], more: &[(&str, Py)]) -> Py {
    let mut all = vec![("checkpoint_version".to_string(), Py::Float(3.0)), ("model".to_string(), dict(items))];
    all.extend(more.iter().map(|(k, v)| (k.to_string(), v.clone())));
    Py::Dict(all)
}

const NORM: &str = "decoder.final_layernorm.weight";

#[test]
fn pickles_that_run_code_are_told_and_run_nothing() {
    let t = Temp::new("proof");
    let proof = t.0.join("proof");
    for (module, name) in [("os", "system"), ("posix", "system"), ("builtins", "exec"), ("subprocess", "Popen")] {
        let call = format!("c{module}\n{name}\n(X");
        let text = format!("touch {}", proof.display());
        let mut raw = call.into_bytes();
        raw.extend((text.len() as u32).to_le_bytes());
        raw.extend(text.as_bytes());
        raw.extend(b"tR");
        let file = torch_file(&model(&[(NORM, Py::Tensor(0, vec![2]))], &[("rng", Py::Raw(raw))]), &[1.0, 2.0]);
        let e = error("hostile", &file);
        assert!(e.contains("mp_rank_00/model_optim_rng.pt") && e.contains(&format!("calls {module}.{name}")), "{e}");
        assert!(e.contains("made to run code") && !proof.exists(), "{e}");
    }
    // a name alone does nothing, and an unknown class is an error where it is needed only
    let class = Py::Raw(b"cos\nsystem\n".to_vec());
    let object = Py::Raw(b"cmy.module\nThing\n)R".to_vec());
    let one = ("embedding.word_embeddings.weight", Py::Tensor(0, vec![1, 2]));
    let file = torch_file(&model(std::slice::from_ref(&one), &[("a", class), ("b", object.clone())]), &[1.0, 2.0]);
    let t = Temp::new("inert");
    write(&t.0, "iter_0000001/mp_rank_00/model_optim_rng.pt", &file);
    write(&t.0, "latest_checkpointed_iteration.txt", b"1");
    assert_eq!(read_all(&t.0).unwrap(), 2);
    let e = error("needed", &torch_file(&model(&[one, (NORM, object)], &[]), &[1.0, 2.0]));
    assert!(e.contains(NORM) && e.contains("an object of my.module.Thing where a tensor is expected"), "{e}");
}

#[test]
fn what_is_wrong_is_said() {
    let whole = |items: &[(&str, Py)], floats: &[f32]| torch_file(&model(items, &[]), floats);
    let norm = |first, shape: &[usize]| whole(&[(NORM, Py::Tensor(first, shape.to_vec()))], &[1.0, 2.0]);
    let compressed = {
        let mut file = norm(0, &[2]);
        let at = file.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        file[at + 10] = 8;
        file
    };
    let flipped = {
        let mut file = norm(0, &[2]);
        let at = file.windows(7).position(|w| w == b"decoder").unwrap();
        file[at] = b'D';
        file
    };
    let pickle_of = |v: &Py| pickle(v);
    let versioned = |v: Py| {
        let v =
            Py::Dict(vec![("checkpoint_version".into(), v), ("model".into(), dict(&[(NORM, Py::Tensor(0, vec![2]))]))]);
        torch_file(&v, &[1.0, 2.0])
    };
    let big = zip(&[("a/data.pkl", &pickle_of(&model(&[], &[]))), ("a/byteorder", b"big")], false);
    for (name, file, words) in [
        ("empty", vec![], "not a complete zip archive"),
        ("text", b"version https://git-lfs.github.com/spec/v1".to_vec(), "not a complete zip archive"),
        ("compressed", compressed, "compressed or encrypted"),
        ("flipped", flipped, "data.pkl is damaged: its CRC-32"),
        ("big", big, "byte order"),
        ("bare", zip(&[("a/version", b"3")], false), "has no data.pkl"),
        ("none", torch_file(&Py::None, &[]), "is no dict"),
        ("no model", torch_file(&dict(&[("checkpoint_version", Py::Float(3.0))]), &[]), "has no model"),
        ("no dict", torch_file(&dict(&[("model", s("x"))]), &[]), "\"model\" is a str"),
        ("beyond", norm(1, &[2]), "has 8 bytes; 8 at 4 are asked for"),
        ("huge", norm(0, &[1 << 40]), "asked for"),
        ("old", versioned(Py::Float(1.0)), "checkpoint_version 1: before 2.0 the rows of query, key and value"),
        ("older", versioned(Py::None), "checkpoint_version 0"),
    ] {
        let e = error(&format!("wrong-{}", name.replace(' ', "-")), &file);
        assert!(e.contains("model_optim_rng.pt") && e.contains(words), "{name}: {e}");
    }
}

#[test]
fn pickles_with_too_much_are_stopped() {
    let refused = |bytes: &[u8], words: &str| {
        let e = load(bytes).map(|_| ()).unwrap_err();
        assert!(e.contains(words), "{e}");
    };
    refused(b"", "it ends early");
    refused(b"\x80\x05N.", "protocol 5");
    refused(b"\x80\x02X\xff\xff\xff\xff", "it ends early");
    refused(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "it ends early");
    refused(b"\x80\x02h\x00.", "never made");
    refused(b"\x80\x02R.", "takes a value where none is");
    refused(b"\x80\x02(0.", "takes a value where none is");
    refused(b"\x80\x02Nu.", "a mark where none is");
    refused(b"\x80\x02Ns.", "takes a value where none is");
    refused(b"\x80\x02I1\n.", "opcode 0x49");
    let long = [b"\x80\x02c".as_slice(), &[b'a'; 300], b"\nb\n."].concat();
    refused(&long, "has more than 256 bytes");
    // a list that holds itself, many times, is read, and is not followed for ever
    let v = [b"\x80\x02}X\x01\0\0\0a]q\x00(".as_slice(), &b"h\x00".repeat(1000), b"es."].concat();
    let p = load(&v).unwrap();
    assert!(p.plain(p.root()).is_empty());
    assert_eq!(load(b"\x80\x02\x8a\x09\x01\x02\x03\x04\x05\x06\x07\x08\x09.").unwrap().root(), &Value::BigInt);
    assert_eq!(load(b"\x80\x02\x8a\x01\xff.").unwrap().root(), &Value::Int(-1));
}

#[test]
fn zip64_records_are_read() {
    let (a, b) = ([7u8; 100], [9u8; 5]);
    for wide in [false, true] {
        let t = Temp::new("wide");
        let mut file = zip(&[("root/data/0", &a), ("root/data/1", &b)], wide);
        if wide {
            file.extend(b"a comment"); // which torch never writes
        }
        write(&t.0, "a.pt", &file);
        let archive = Archive::open(t.0.join("a.pt")).unwrap();
        assert_eq!((archive.len("data/0"), archive.len("data/1"), archive.len("x")), (Some(100), Some(5), None));
        let mut out = [0; 3];
        archive.read("data/1", 2, &mut out).unwrap();
        assert_eq!(out, [9; 3]);
        assert!(archive.read("data/1", 3, &mut out).is_err() && archive.read("data/1", u64::MAX, &mut out).is_err());
    }
}

/// Lengths near 2^64, whose sums with positions have no place in 64 bits.
#[test]
fn zip64_lengths_do_not_overflow() {
    let whole = zip(&[("root/data/0", &[7u8; 100]), ("root/data/1", &[9u8; 5])], true);
    let field = [1u8, 0, 24, 0];
    let places: Vec<usize> = (0..whole.len()).filter(|&i| whole[i..].starts_with(&field)).collect();
    assert_eq!(places.len(), 2);
    for at in places.iter().flat_map(|at| [at + 4, at + 20]) {
        for n in [u64::MAX, u64::MAX - 29, u64::MAX - 30, u64::MAX / 2 + 1] {
            let t = Temp::new("overflow");
            let mut file = whole.clone();
            file[at..at + 8].copy_from_slice(&n.to_le_bytes());
            write(&t.0, "a.pt", &file);
            let told = Archive::open(t.0.join("a.pt")).unwrap_err().to_string();
            assert!(told.contains("lies outside of it"), "{told}");
        }
    }
}

/// Beyond 4 GiB: of a file of 6 GiB (with a hole), the directory and what is asked for is read.
#[test]
fn large_files_cost_what_is_read() {
    const LEN: u64 = 6 << 30;
    let t = Temp::new("large");
    let path = t.0.join("a.pt");
    // the records of a small archive, behind a hole
    let small = zip(&[("r/data/0", &[])], true);
    let directory = small.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    let mut records = small[directory..].to_vec();
    let set = |records: &mut Vec<u8>, at: usize, n: u64| records[at..at + 8].copy_from_slice(&n.to_le_bytes());
    let begin = directory as u64;
    let name = 46 + "r/data/0".len();
    set(&mut records, name + 4, LEN); // length, packed length, header
    set(&mut records, name + 12, LEN);
    let end = records.windows(4).position(|w| w == b"PK\x06\x06").unwrap();
    set(&mut records, end + 48, begin + LEN);
    let locator = records.windows(4).position(|w| w == b"PK\x06\x07").unwrap();
    set(&mut records, locator + 8, begin + LEN + end as u64);
    let file = std::fs::File::create(&path).unwrap();
    let put = |bytes: &[u8], at: u64| std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
    put(&small[..directory], 0);
    put(b"last", begin + LEN - 4);
    put(&records, begin + LEN);
    let archive = Archive::open(&path).unwrap();
    assert_eq!(archive.len("data/0"), Some(LEN));
    let mut out = [0; 6];
    archive.read("data/0", LEN - 6, &mut out).unwrap();
    assert_eq!(&out, b"\0\0last");
    // a file that is cut loses its directory
    file.set_len(begin + LEN).unwrap();
    assert!(Archive::open(&path).unwrap_err().to_string().contains("not a complete zip archive"));
}

/// A simple generator: the same inputs each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        if self.below(3) == 0 {
            out.truncate(self.below(out.len()));
        } else {
            for _ in 0..=self.below(4) {
                let at = self.below(out.len());
                out[at] = if self.below(2) == 0 { out[at] ^ (1 << self.below(8)) } else { self.below(256) as u8 };
            }
        }
        out
    }
}

/// Pickles that Megatron wrote, without the checksum that would tell.
#[test]
fn five_thousand_damaged_pickles() {
    let mut inputs = vec![std::fs::read(golden("llama_torch_dist/iter_0000003/.metadata")).unwrap()];
    for name in
        ["llama_torch/iter_0000003/mp_rank_00_001/model_optim_rng.pt", "llama_torch_dist/iter_0000003/common.pt"]
    {
        inputs.push(Archive::open(golden(name)).unwrap().pickle().unwrap());
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut read, mut refused) = (0, 0);
    for i in 0..5000 {
        match load(&random.damage(&inputs[i % inputs.len()])) {
            Ok(p) => {
                p.plain(p.root());
                read += 1;
            }
            Err(e) => {
                assert!(e.contains("byte "), "{e}");
                refused += 1;
            }
        }
    }
    assert!(refused > 1500 && read > 500, "{read} read, {refused} refused");
}

/// Whole checkpoints, opened and read. Damage in numbers of weights is not seen: torch's files have checksums of whole storages,
/// of which parts are read.
#[test]
fn damaged_files() {
    for (name, file, times) in [
        ("llama_torch", "iter_0000003/mp_rank_01_000/model_optim_rng.pt", 300),
        ("llama_torch", "iter_0000003/mp_rank_00_001/model_optim_rng.pt", 300),
        ("llama_torch_dist", "iter_0000003/.metadata", 300),
        ("llama_torch_dist", "iter_0000003/common.pt", 100),
        ("llama_torch_dist", "iter_0000003/__1_1.distcp", 300),
        ("llama_torch_dist", "iter_0000003/metadata.json", 50),
    ] {
        let t = Temp::new("damaged");
        copy(&golden(name), &t.0);
        let bytes = std::fs::read(golden(name).join(file)).unwrap();
        let mut random = Random(0x1234_5678_9abc_def1);
        for i in 0..times {
            let damaged = if i == 0 { bytes[..bytes.len() / 2].to_vec() } else { random.damage(&bytes) };
            write(&t.0, file, &damaged);
            let read = read_all(&t.0);
            let place = t.0.display().to_string();
            assert!(read.as_ref().err().is_none_or(|e| e.contains(&place)), "{file}: {read:?}");
            if i == 0 && !file.ends_with(".json") {
                assert!(read.as_ref().is_err_and(|e| e.contains(file.rsplit('/').next().unwrap())), "{file}: {read:?}");
            }
        }
        std::fs::remove_file(t.0.join(file)).unwrap();
        let read = read_all(&t.0);
        assert!(read.is_err() || file.ends_with("common.pt"), "{file} is gone: {read:?}");
    }
}

/// Values in `.metadata` that would lead out of the folder.
#[test]
fn files_outside_of_the_folder_are_not_read() {
    let t = Temp::new("outside");
    copy(&golden("llama_torch_dist"), &t.0);
    let file = "iter_0000003/.metadata";
    let mut bytes = std::fs::read(t.0.join(file)).unwrap();
    let at = bytes.windows(12).position(|w| w == b"__0_0.distcp").unwrap();
    bytes[at..at + 12].copy_from_slice(b"../../passwd");
    write(&t.0, file, &bytes);
    let e = read_all(&t.0).unwrap_err();
    assert!(e.contains(".metadata") && e.contains("outside of the folder"), "{e}");
}
