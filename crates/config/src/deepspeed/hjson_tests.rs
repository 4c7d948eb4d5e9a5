//! Written cases of Hjson's syntax page and of JSON. What is read equals what Python's hjson 3.1.0 reads, by which DeepSpeed does;
//! what is refused is refused there, but for an empty text, a list and a bare word, which are no configuration, and half a surrogate.
#![allow(clippy::unwrap_used)] // a test

use super::*;

/// A node as JSON, which forgets places.
fn json(node: &Node) -> serde_json::Value {
    match &node.data {
        Data::Null => serde_json::Value::Null,
        Data::Bool(b) => (*b).into(),
        Data::Int(i) => (*i).into(),
        Data::Float(f) => (*f).into(),
        Data::Text(t) => t.clone().into(),
        Data::List(items) => items.iter().map(json).collect(),
        Data::Object(members) => members.iter().map(|(n, node)| (n.clone(), json(node))).collect(),
    }
}

#[test]
fn hjson_is_read() {
    for (text, want) in [
        (r#"{"a": 1, "b": [true, false, null, -2.5e3]}"#, r#"{"a":1,"b":[true,false,null,-2500.0]}"#),
        ("{ // first\n a: 1 # second\n /* third\n */ b: 2 }", r#"{"a":1,"b":2}"#),
        ("{\"a\": 1,\n \"b\": [1, 2,],\n}", r#"{"a":1,"b":[1,2]}"#),
        ("{\n a: 1\n b: 2\n c: [\n 1\n 2\n ]\n}", r#"{"a":1,"b":2,"c":[1,2]}"#),
        // A text without quotes runs to the end of the line; a number ends before a comma or a comment.
        ("{\n a: some, text # with all\n b: 3, c: 4 // no\n}", r#"{"a":"some, text # with all","b":3,"c":4}"#),
        (
            "{\n a: 1e5\n b: 01\n c: 1.\n d: -0\n e: true story\n}",
            r#"{"a":100000.0,"b":"01","c":"1.","d":-0.0,"e":"true story"}"#,
        ),
        // The outermost object needs no braces.
        ("train_batch_size: 8\nfp16: {enabled: true}\n", r#"{"train_batch_size":8,"fp16":{"enabled":true}}"#),
        ("{a: 'it\\'s', \"b c\": \"\\u00e9\\ud83d\\ude00\\n\"}", "{\"a\":\"it's\",\"b c\":\"é😀\\n\"}"),
        ("{\n  a:\n    '''\n    one\n      two\n    '''\n}", r#"{"a":"one\n  two"}"#),
        ("\u{feff}{}", "{}"),
        ("{a: 12345678901234567890}", r#"{"a":12345678901234567890.0}"#),
        ("{a: \"\"}", r#"{"a":""}"#),
        ("{a: trueish\n b: -\n c: +1\n d: 0x10\n e: .5\n}", r#"{"a":"trueish","b":"-","c":"+1","d":"0x10","e":".5"}"#),
        ("{a: 5 # c\n b: 5 apples\n}", r#"{"a":5,"b":"5 apples"}"#),
        ("{a: http://x.y/z\n b: x // y\n}", r#"{"a":"http://x.y/z","b":"x // y"}"#),
        ("{a: '''one''', 'b': [a\n b\n], \"c\": \"x\\/y\"}\n# end", r#"{"a":"one","b":["a","b"],"c":"x/y"}"#),
        ("{a: '''\n one\n two\n'''\n}", r#"{"a":"one\ntwo"}"#),
    ] {
        let want: serde_json::Value = serde_json::from_str(want).unwrap();
        assert_eq!(json(&read(text).unwrap()), want, "{text}");
    }
}

#[test]
fn mistakes_have_a_place() {
    for (text, line, column, what) in [
        ("", 1, 1, "nothing is written"),
        ("# only a comment\n", 2, 1, "nothing is written"),
        ("[1]", 1, 1, "a list, where"),
        ("{\n \"a\": 1,\n \"a\": 2\n}", 3, 2, "\"a\" is stated twice, first in line 2"),
        ("{\"a\": {\"b\": 1, b: 2}}", 1, 16, "\"b\" is stated twice"),
        ("{\"a\" 1}", 1, 6, "no ':' after the name \"a\""),
        ("{\"a\": }", 1, 7, "a value is missing"),
        ("{\"a\": \"x\n\"}", 1, 7, "a text is not closed"),
        ("{\"a\": \"\\q\"}", 1, 9, "this is no escape"),
        ("{\"a\": \"\\ud800\"}", 1, 9, "this is no escape"),
        ("{\n a: text }\n", 1, 1, "an object { is not closed"),
        ("{} {}", 1, 4, "text after the end"),
        ("{a: [1", 1, 5, "a list [ is not closed"),
        ("{a: 1 /* x", 1, 7, "a comment /* is not closed"),
        ("{a: '''x", 1, 5, "a text ''' is not closed"),
        ("{, a: 1}", 1, 2, "',' where a name should stand"),
        ("{a: 1 b: 2}", 1, 1, "an object { is not closed"),
        ("{a b: 1}", 1, 4, "no ':' after the name \"a\""),
        ("{a: 1,, b: 2}", 1, 7, "',' where a name should stand"),
        ("a: 1\n}", 2, 1, "'}' where a name should stand"),
        ("hello world", 1, 7, "no ':' after the name \"hello\""),
    ] {
        let fault = read(text).unwrap_err();
        assert!(fault.what.contains(what), "{text:?}: {fault:?}");
        assert_eq!((fault.line, fault.column), (line, column), "{text:?}: {fault:?}");
    }
}

#[test]
fn limits_hold() {
    let deep = format!("{{a: {}", "[".repeat(100_000));
    assert!(read(&deep).unwrap_err().what.contains("nested more than"));
    let many = format!("{{a: [{}]}}", "1,".repeat(200_000));
    assert!(read(&many).unwrap_err().what.contains("more than 100000 values"));
    let long = " ".repeat(MAX_BYTES + 1);
    assert!(read(&long).unwrap_err().what.contains("1 MiB"));
    // Texts that a careless reader goes over again and again.
    let began = std::time::Instant::now();
    for text in
        [format!("a: 1{}", "9,".repeat(400_000)), format!("a: 1 x{}", ",".repeat(1_000_000)), "'".repeat(1_000_000)]
    {
        let _ = read(&text);
    }
    assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
}
