//! Each rule on small texts: what it must find, and what it must leave alone.

use super::*;

fn lines(found: Vec<Finding>) -> Vec<usize> {
    found.into_iter().map(|f| f.line).collect()
}

fn deps(name: &str, toml: &str) -> Vec<usize> {
    lines(dependencies("crates/x/Cargo.toml", name, toml))
}

#[test]
fn arrows_point_down() {
    let toml = "[package]\nname = \"ferrotron-nn\"\n[dependencies]\nferrotron-base.workspace = true\nferrotron-train = { path = \"x\" }\n";
    assert_eq!(deps("nn", toml), [5]);
    assert_eq!(deps("nn", "[dependencies]\nferrotron-nn.workspace = true"), [2]); // itself
    assert_eq!(deps("nn", "[dependencies.ferrotron-train]\nworkspace = true"), [1]);
    assert_eq!(deps("nn", "[target.'cfg(unix)'.dependencies]\nferrotron-train = \"1\""), [2]);
    assert_eq!(deps("nn", "[build-dependencies]\nferrotron-train = \"1\""), [2]);
    assert_eq!(deps("nn", "[dev-dependencies]\nferrotron-train = \"1\"\n[lints]\nferrotron-train = 1"), [0usize; 0]);
    assert_eq!(deps("nn", "[dependencies]\nferrotron-unheard.workspace = true"), [2]);
    assert_eq!(deps("unheard", ""), [0]);
    assert_eq!(deps("train", "[dependencies]\nferrotron-backends.workspace = true"), [0usize; 0]);
}

#[test]
fn host_side_crates_and_the_registry() {
    for (name, dep, allowed) in [
        ("checkpoint", "base", true),
        ("checkpoint", "device", false),
        ("tokenizer", "data", true),
        ("sft", "tokenizer", true),
        ("sft", "nn", false),
        ("tokenizer", "runtime", false),
        ("optim", "runtime", true),
        ("optim", "nn", false),
        ("executor", "schedule", true),
        ("models", "nn", true),
        ("backends", "cpu", true),
        ("backends", "ascend", true),
        ("train", "ascend", false),
        ("train", "cpu", false),
    ] {
        let found = deps(name, &format!("[dependencies]\nferrotron-{dep}.workspace = true\n"));
        assert_eq!(found.is_empty(), allowed, "{name} -> {dep}");
    }
}

#[test]
fn sizes() {
    let check = |file: &str, n: usize| lines(size(file, &"\n".repeat(n)));
    assert_eq!(check("crates/nn/src/lib.rs", 500), [0usize; 0]);
    assert_eq!(check("crates/nn/src/lib.rs", 501), [501]);
    assert_eq!(check("crates/config/src/flags/megatron.rs", 5000), [0usize; 0]);
    assert_eq!(check("xtask/src/main.rs", 101), [101]);
    assert_eq!(check("crates/cli/src/bin/pretrain_gpt.rs", 101), [101]);
}

#[test]
fn unsafe_only_where_it_belongs() {
    let check = |file: &str, text: &str| lines(unsafe_code(file, text, &code_only(text)));
    let good = "// SAFETY: it is there\nunsafe { f() }\n";
    assert_eq!(check("crates/cpu/src/a.rs", good), [0usize; 0]);
    assert_eq!(check("crates/nn/src/a.rs", good), [2]);
    assert_eq!(check("crates/launch/src/raw.rs", good), [0usize; 0]);
    assert_eq!(check("crates/launch/src/port.rs", good), [2]);
    assert_eq!(check("crates/cpu/src/a.rs", "unsafe { f() }\n"), [1]);
    assert_eq!(check("crates/cpu/src/a.rs", "let x =\n    unsafe\n    { f() };"), [2]);
    assert_eq!(check("crates/cpu/src/a.rs", "unsafe impl Send for X {}\n"), [1]);
    assert_eq!(check("crates/cpu/src/a.rs", "/// # Safety\npub unsafe fn f() {}\n"), [0usize; 0]);
    assert_eq!(check("crates/nn/src/a.rs", "// unsafe {\nlet unsafe_x = \"unsafe {\";\n"), [0usize; 0]);
    let far = format!("// SAFETY: long ago\n{}unsafe {{ f() }}", "x();\n".repeat(SAFETY_WITHIN));
    assert_eq!(check("crates/cpu/src/a.rs", &far), [SAFETY_WITHIN + 2]);
}

#[test]
fn nothing_unfinished() {
    let check = |text: &str| lines(unfinished("a.rs", &code_only(text)));
    assert_eq!(check("fn f() { todo!() }\nunimplemented!();\n dbg! (x);\n#[ ignore = \"slow\"]"), [1, 2, 3, 4]);
    assert_eq!(check("// todo!()\nlet s = \"dbg!(x)\"; let c = '\"'; mytodo!();\n#[ignored]"), [0usize; 0]);
    assert_eq!(check("/* todo!() /* nested */ dbg!() */ let r = r#\"todo!() \" todo!()\"#;"), [0usize; 0]);
}

#[test]
fn features_only_in_the_registry() {
    let check = |file: &str, text: &str| lines(features(file, &code_only(text)));
    let text = "#[cfg(feature = \"cuda\")]\n#[cfg(all(unix, feature=\"x\"))]\nif cfg!(feature = \"y\") {}\n";
    assert_eq!(check("crates/nn/src/a.rs", text), [1, 2, 3]);
    assert_eq!(check("crates/backends/src/lib.rs", text), [0usize; 0]);
    assert_eq!(check("crates/cpu/src/a.rs", "#[cfg(target_feature = \"avx2\")] // cfg(feature = \"x\")"), [0usize; 0]);
}

#[test]
fn no_global_state() {
    let check = |file: &str, text: &str| lines(globals(file, &code_only(text)));
    let text = "static mut N: u32 = 0;\npub static COUNT: AtomicU64 = AtomicU64::new(0);\nstatic A:\n    Mutex<u8> = x;\n\
                thread_local! {}\nstatic NAMES: [&str; 2] = [\"Mutex\", \"b\"];\nfn f(x: &'static Mutex<u8>) {}\n";
    assert_eq!(check("crates/nn/src/a.rs", text), [1, 2, 3, 5]);
    assert_eq!(check("crates/mock/src/a.rs", text), [0usize; 0]);
    assert_eq!(check("crates/nn/tests/a.rs", text), [0usize; 0]);
    assert_eq!(check("crates/nn/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{text}}}")), [0usize; 0]);
}

#[test]
fn no_machine_paths() {
    let check = |text: &str| lines(forbidden_text("README.md", text));
    assert_eq!(check("see /work/x\nok\n`/home/me/data`\n(../shared/a)"), [1, 3, 4]);
    assert_eq!(check("network/work/x $HOME/data framework/ https://example.org/home/"), [0usize; 0]);
}

#[test]
fn c_is_seen_in_the_tree() {
    assert_eq!(c_builders("half v2.7.1\ncc v1.2.0\nccv v1.0.0\n"), ["cc"]);
    assert_eq!(c_builders("half v2.7.1\nsucc v1.0.0\n"), [""; 0]);
}

#[test]
fn literals_are_blanked_and_lines_kept() {
    let text =
        "let a = 'x'; let q = '\\''; fn f<'a>(s: &'a str) {} // note\nlet s = \"x\\\"y\n x\"; br##\"x\"#y\"##; z";
    let code = code_only(text);
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(code.contains("fn f<'a>(s: &'a str) {}") && code.ends_with("; z"), "{code}");
    assert!(!code.contains("note") && !code.contains('x') && !code.contains('y'), "{code}");
}

/// The walk, not only the rules: a broken file in a folder tree is found with its line.
#[test]
fn files_are_checked_by_their_place() {
    let found = check_file("crates/nn/src/deep/a.rs", "fn f() {}\nfn g() { todo!() }\n");
    assert_eq!(found[0].to_string(), "crates/nn/src/deep/a.rs:2: todo! has no place here");
    assert_eq!(lines(check_file("crates/base/Cargo.toml", "[dependencies]\nferrotron-nn.workspace = true")), [2]);
}
