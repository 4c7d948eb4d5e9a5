//! Packed input, shares of a cluster's jobs, sentences. The packed files are made by Python's gzip and zstandard:
//! several members and frames, with and without checksums, skippable frames between.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

mod common;

use common::{Folder, golden, preprocess};
use ferrotron_data::IndexedWriter;
use ferrotron_data::indexed::{IndexedDataset, Multimodal, Tokens, merge};
use ferrotron_tokenizer::preprocess::{Options, PreprocessArgs, Shard};
use proptest::prelude::*;

fn packed(name: &str) -> Vec<u8> {
    std::fs::read(golden(&format!("packed/{name}"))).unwrap()
}

#[test]
fn packed_files_give_the_same_bytes() {
    let f = Folder::new("packed");
    let plain = f.write("c.jsonl", packed("corpus.jsonl"));
    preprocess(&f.args(&plain), &Options::default()).unwrap();
    let want = f.dataset("out_text_document");
    assert_eq!(want.sequences().len(), 600);
    // The name does not matter, the first bytes do.
    for (name, golden) in
        [("a.jsonl.gz", "corpus.jsonl.gz"), ("b.zst", "corpus.jsonl.zst"), ("c.jsonl", "corpus.jsonl.gz")]
    {
        let (summary, _) = preprocess(&f.args(&f.write(name, packed(golden))), &Options::default()).unwrap();
        assert_eq!(summary.bytes, packed("corpus.jsonl").len() as u64, "{name}");
        assert!(f.dataset("out_text_document") == want, "{name}");
    }
    // A folder is its plain and its packed files.
    std::fs::create_dir(f.0.join("all")).unwrap();
    f.write("all/a.json.gz", packed("corpus.jsonl.gz"));
    f.write("all/b.jsonl.zst", packed("corpus.jsonl.zst"));
    f.write("all/c.txt.gz", packed("corpus.jsonl.gz"));
    let (summary, _) = preprocess(&f.args(&f.0.join("all").display().to_string()), &Options::default()).unwrap();
    assert_eq!(summary.documents, 1200);
}

#[test]
fn cut_or_changed_packed_files_are_errors() {
    let f = Folder::new("cut");
    for name in ["corpus.jsonl.gz", "corpus.jsonl.zst"] {
        let whole = packed(name);
        for cut in [5, 100, whole.len() / 2, whole.len() - 3] {
            let e = preprocess(&f.args(&f.write("x.jsonl", &whole[..cut])), &Options::default()).unwrap_err();
            assert!(e.contains("cannot unpack") && e.contains("x.jsonl"), "{name} {cut}: {e}");
            assert_eq!(f.names(), ["x.jsonl"]);
        }
    }
    // The first frame has a checksum, and the second member of gzip always does.
    let mut changed = packed("corpus.jsonl.zst");
    changed[2000] ^= 4;
    assert!(preprocess(&f.args(&f.write("x.jsonl", changed)), &Options::default()).is_err());
}

#[test]
fn other_packings_say_what_to_do() {
    let f = Folder::new("other");
    let check = |bytes: &[u8], part: &str| {
        let e = preprocess(&f.args(&f.write("x.jsonl", bytes)), &Options::default()).unwrap_err();
        assert!(e.contains(part), "{e}");
    };
    check(b"PAR1\x15\x04", "is a parquet file, which is not read");
    check(b"BZh91AY", "bunzip2");
    check(b"PK\x03\x04", "zip archive");
}

/// Errors name the line of the whole file, also in a part of it.
#[test]
fn shares_merge_to_the_whole() {
    let f = Folder::new("shards");
    f.write("a.jsonl", packed("corpus.jsonl"));
    f.write("b.jsonl.zst", packed("corpus.jsonl.zst"));
    f.write("c.jsonl", "{\"text\": \"7 8\"}\n\n{\"text\": \"9\"}");
    let args = f.args(&format!("{}/*.jsonl*", f.0.display()));
    preprocess(&args, &Options::default()).unwrap();
    let want = f.dataset("out_text_document");
    for count in [1, 2, 5] {
        let mut parts = Vec::new();
        for index in 0..count {
            let options = Options { shard: Some(Shard { index, count }), ..Options::default() };
            preprocess(&args, &options).unwrap();
            parts.push(f.0.join(format!("out-{index:05}-of-{count:05}_text_document")));
        }
        merge(f.0.join("merged"), &parts, Multimodal::No).unwrap();
        assert!(f.dataset("merged") == want, "{count}");
    }
    let bad = f.write("bad.jsonl", "{\"text\": \"1 2 3\"}\n".repeat(100) + "{\"text\": \"x\"}\n");
    let options = Options { shard: Some(Shard { index: 3, count: 4 }), ..Options::default() };
    let e = preprocess(&f.args(&bad), &options).unwrap_err();
    assert!(e.contains("bad.jsonl:101:2: key \"text\""), "{e}");
    for text in ["3", "3/3", "-1/2", "0/0", "a/b", "1/2/3"] {
        assert!(text.parse::<Shard>().unwrap_err().to_string().contains("--shard"), "{text}");
    }
    assert_eq!("0/8".parse::<Shard>().unwrap(), Shard { index: 0, count: 8 });
}

/// PRE-09: one run, one partition; a document of one sentence is kept.
#[test]
fn pre_09_sentences_are_split_in_one_run() {
    let f = Folder::new("pre09");
    let text = "{\"text\": \"Hi. Go on!\\n\\nYes\"}\n{\"text\": \"One only\"}\n{\"text\": \"  \"}\n";
    let mut args = PreprocessArgs { append_eod: true, workers: 1, ..f.args(&f.write("a.jsonl", text)) };
    args.tokenizer.tokenizer_type = "ByteLevel".into();
    let split = Options { split_sentences: true, ..Options::default() };
    preprocess(&args, &split).unwrap();
    let d = f.dataset("out_text_sentence");
    let shown = |d: &common::Dataset| -> Vec<String> {
        let text = |s: Vec<u32>| s.iter().map(|&id| char::from_u32(id).filter(|_| id < 256).unwrap_or('$')).collect();
        d.sequences().into_iter().map(text).collect()
    };
    assert_eq!(shown(&d), ["Hi.", "Go on!", "Yes$", "One only$"]);
    assert_eq!(d.documents(), [0, 3, 4, 4]);
    for partitions in [2, 7] {
        preprocess(&args, &Options { partitions, ..split.clone() }).unwrap();
        assert!(f.dataset("out_text_sentence") == d);
    }
    preprocess(&args, &Options { keep_newlines: true, ..split }).unwrap();
    assert_eq!(shown(&f.dataset("out_text_sentence")), ["Hi.", "Go on!\n\n", "Yes$", "One only$"]);
    let e = preprocess(&args, &Options { keep_newlines: true, ..Options::default() }).unwrap_err();
    assert!(e.contains("--keep-newlines") && e.contains("--split-sentences"), "{e}");
    let e = preprocess(&args, &Options { partitions: 0, ..Options::default() }).unwrap_err();
    assert!(e.contains("--partitions"), "{e}");
}

/// PRE-15: no library of an accelerator is loaded, whether the machine has one or not.
#[cfg(target_os = "linux")]
#[test]
fn pre_15_no_accelerator_library_is_loaded() {
    let f = Folder::new("pre15");
    preprocess(&f.args(&f.write("a.jsonl", "{\"text\": \"1\"}\n")), &Options::default()).unwrap();
    let loaded = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(loaded.contains("libc."), "the list names libraries");
    for library in ["libcuda", "libcudart", "libnccl", "libascendcl", "libhccl", "libpython", "libtorch"] {
        assert!(!loaded.contains(library), "{library}");
    }
}

/// PRE-12: the longest texts a tokenizer of `.model` files meets are encoded by parts; memory is bounded by the gate.
#[test]
fn pre_12_a_huge_line_for_sentencepiece() {
    let f = Folder::new("pre12-spm");
    let mut args = f.args(
        &f.write("a.jsonl", format!("{{\"text\": \"{}\"}}\n{{\"text\": \"end\"}}\n", "hello world ".repeat(200_000))),
    );
    args.tokenizer.tokenizer_type = "Llama2Tokenizer".into();
    args.tokenizer.tokenizer_model = Some(golden("spm/llama.model"));
    let (summary, _) = preprocess(&args, &Options::default()).unwrap();
    assert_eq!(summary.documents, 2);
    assert!(summary.keys[0].longest > 400_000, "{summary:?}");
}

/// DAT-04: merged, documents and their index are those of the joined text, empty documents included.
#[test]
fn dat_04_merging_equals_preprocessing_the_joined_text() {
    let f = Folder::new("dat04");
    let (a, b) = ("{\"text\":\"1 2 3\"}\n{\"text\":\"\"}\n", "{\"text\":\"4 5\"}\n");
    for (name, text) in [("a", a.to_string()), ("b", b.to_string()), ("ab", [a, b].concat())] {
        let args = PreprocessArgs { output_prefix: f.0.join(name), ..f.args(&f.write("in.jsonl", text)) };
        preprocess(&args, &Options::default()).unwrap();
    }
    let inputs = ["a", "b"].map(|n| f.0.join(format!("{n}_text_document")));
    merge(f.0.join("merged"), &inputs, Multimodal::No).unwrap();
    let merged = f.dataset("merged");
    assert!(merged == f.dataset("ab_text_document"));
    // As in Megatron an empty text is a document without a sequence.
    assert_eq!((merged.sequences(), merged.documents()), (vec![vec![1, 2, 3], vec![4, 5]], vec![0, 1, 1, 2]));

    let mut wide = IndexedWriter::create(f.0.join("wide"), ferrotron_data::TokenType::I32).unwrap();
    wide.add_sequence([1]).unwrap();
    wide.end_document();
    wide.finish().unwrap();
    let e = merge(f.0.join("no"), &[inputs[0].clone(), f.0.join("wide")], Multimodal::No).unwrap_err().to_string();
    assert!(e.contains("wide") && e.contains("int32") && e.contains("uint16"), "{e}");
    assert_eq!(IndexedDataset::open(f.0.join("merged"), Multimodal::No).unwrap().sequences(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Packed files with bytes changed or cut: an error or other text, never a panic, a hang, or half a file.
    #[test]
    fn damaged_packed_files_never_panic(
        gzip in any::<bool>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        shorten in any::<bool>(),
    ) {
        let mut bytes = packed(if gzip { "corpus.jsonl.gz" } else { "corpus.jsonl.zst" });
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if shorten {
            bytes.truncate(cut.index(bytes.len()));
        }
        let f = Folder::new("damaged");
        let args = PreprocessArgs { skip_bad: 5, ..f.args(&f.write("x.jsonl", bytes)) };
        if preprocess(&args, &Options::default()).is_err() {
            prop_assert_eq!(f.names(), ["x.jsonl"]);
        }
    }
}
