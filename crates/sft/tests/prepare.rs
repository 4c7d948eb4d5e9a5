//! Reading, truncation, packing and mixing; cases that users of other trainers met bear the ids of their collection.
#![allow(clippy::unwrap_used)]

use ferrotron_sft::{Conversation, Example, Turns, fit, mix, pack, read_jsonl};
use proptest::prelude::*;
use serde_json::{Value, json};

fn example(prompt: usize, answer: usize) -> Example {
    let n = prompt + answer;
    Example { ids: (1..=n as u32).collect(), mask: (0..n).map(|i| i >= prompt).collect() }
}

#[test]
fn sft_01_examples_without_targets_are_counted_and_dropped() {
    let examples = || vec![example(40, 5), example(10, 5), example(20, 30), example(3, 2)];
    let fitted = fit(examples(), 32).unwrap();
    assert_eq!((fitted.examples.len(), fitted.truncated, fitted.dropped), (3, 2, 1));
    assert_eq!(fitted.examples[1].ids.len(), 32);
    assert_eq!(fitted.notice(32).unwrap(), "1 of 4 examples have no target tokens after truncation to 32");
    assert!(fit(examples(), 64).unwrap().notice(64).is_none());
    let e = fit(vec![example(40, 5), example(33, 1)], 32).unwrap_err().to_string();
    assert!(
        e.contains("2 of 2 examples have no target tokens after truncation to 32") && e.contains("--seq-length"),
        "{e}"
    );
}

#[test]
fn sft_07_segments_are_padded_weights_honoured_and_turns_checked() {
    // Context parallelism of 2 cuts segments in 4 parts.
    let packed = pack(&[example(2, 3), example(1, 2), example(3, 4)], 16, 4, 0).unwrap();
    assert_eq!(packed.iter().map(|p| p.cu_seqlens.clone()).collect::<Vec<_>>(), [vec![0, 8, 12, 16], vec![0, 8, 16]]);
    assert_eq!(packed[0].examples, [0, 1]);
    assert_eq!(packed[0].tokens[..12], [1, 2, 3, 4, 5, 0, 0, 0, 1, 2, 3, 0]);
    assert_eq!(packed[0].labels[..12], [0, 3, 4, 5, 0, 0, 0, 0, 2, 3, 0, 0]);
    assert_eq!(packed[0].position_ids[..10], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
    assert!(pack(&[], 10, 4, 0).unwrap_err().to_string().contains("--seq-length 10 is not a multiple of 4"));
    assert!(pack(&[example(20, 1)], 16, 1, 0).unwrap_err().to_string().contains("example 0 has 21 ids"));

    let drawn = mix(&[5, 100], &[3.0, 1.0], 40).unwrap();
    assert_eq!(drawn.iter().filter(|(set, _)| *set == 0).count(), 30);
    assert_eq!(drawn[..4].iter().map(|(set, _)| *set).collect::<Vec<_>>(), [0, 0, 1, 0]);
    for (sizes, weights) in [(&[1, 1][..], &[1.0, 0.0][..]), (&[1, 0], &[1.0, 1.0]), (&[1], &[f64::NAN]), (&[1], &[])] {
        assert!(mix(sizes, weights, 1).is_err());
    }

    let record = json!({"messages": [
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"},
    ]});
    let path = std::env::temp_dir().join(format!("ferrotron-sft-turns-{}.jsonl", std::process::id()));
    std::fs::write(&path, format!("\n{record}\n")).unwrap();
    let e = read_jsonl(&path, Turns::Strict).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(e.contains(".jsonl:2: messages 1 and 2 are both of the user"), "{e}");
    let merged = read_jsonl(&path, Turns::Merge).unwrap().next().unwrap().unwrap();
    assert_eq!(merged.messages[0]["content"], "a\n\nb");
    assert_eq!(merged.messages.len(), 2);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn records_of_both_kinds_are_read_and_others_named() {
    let share = json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "id": 7});
    let c = Conversation::from_record(share, Turns::Strict).unwrap();
    assert_eq!(c.messages, [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "b"})]);
    assert_eq!(c.extra["id"], 7);
    for (record, part) in [
        (json!([]), "not a JSON object"),
        (json!({"text": "x", "id": 1}), "neither \"messages\" nor \"conversations\" (keys: text, id)"),
        (json!({"messages": []}), "no messages"),
        (json!({"messages": "x"}), "not a list"),
        (json!({"messages": [{"content": "x"}]}), "message 1 has no role"),
        (json!({"messages": [{"role": "user"}]}), "message 1 (user) has no content"),
        (json!({"messages": [{"role": "user", "content": 3}]}), "message 1 (user) has no content"),
        (json!({"conversations": [{"from": "x", "value": "y"}]}), "turn 1 is from \"x\""),
        (json!({"conversations": [{"from": "human"}]}), "turn 1 has no"),
    ] {
        let e = Conversation::from_record(record, Turns::Strict).unwrap_err();
        assert!(e.contains(part), "{e}");
    }
    assert!(read_jsonl("/no/such.jsonl".as_ref(), Turns::Strict).err().unwrap().to_string().contains("/no/such.jsonl"));
}

proptest! {
    /// Every id of every example is in exactly one sample, in order, with its targets; bounds ascend from 0 to S.
    #[test]
    fn packing_loses_nothing(sizes in proptest::collection::vec((0usize..20, 0usize..20), 0..40), multiple in 1usize..5) {
        let length = 40 * multiple;
        let examples: Vec<Example> = sizes.iter().map(|&(p, a)| example(p, a)).collect();
        let packed = pack(&examples, length, multiple, 7).unwrap();
        let mut seen = vec![0; examples.len()];
        for p in &packed {
            prop_assert!([p.tokens.len(), p.labels.len(), p.loss_mask.len(), p.position_ids.len()] == [length; 4]);
            prop_assert!(p.cu_seqlens[0] == 0 && p.cu_seqlens.is_sorted_by(|a, b| a < b));
            prop_assert_eq!(*p.cu_seqlens.last().unwrap() as usize, length);
            let mut targets = 0;
            for (&i, segment) in p.examples.iter().zip(p.cu_seqlens.windows(2)) {
                let (from, to) = (segment[0] as usize, segment[1] as usize);
                prop_assert!((to - from) % multiple == 0);
                prop_assert_eq!(&p.tokens[from..from + examples[i].ids.len()], &examples[i].ids[..]);
                seen[i] += 1;
                targets += examples[i].targets();
            }
            prop_assert_eq!(p.loss_mask.iter().sum::<f32>() as usize, targets);
        }
        prop_assert!(seen.iter().zip(&examples).all(|(&n, e)| n == usize::from(!e.ids.is_empty())));
    }

    /// Any JSON as a record: a conversation or an error.
    #[test]
    fn any_record_is_answered(text in "\\PC{0,40}", role in "[a-z]{0,9}") {
        let _ = serde_json::from_str::<Value>(&text).map(|v| Conversation::from_record(v, Turns::Merge));
        let record = json!({"messages": [{"role": role, "content": text}, {"role": role, "content": [text]}]});
        let _ = Conversation::from_record(record, Turns::Merge);
    }
}
