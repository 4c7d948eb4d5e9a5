//! Texts, ids and masks equal to those of transformers 5.24.0 (`apply_chat_template` with
//! `return_assistant_tokens_mask`), which made `golden/chat.json` with the two tokenizers beside it.
#![allow(clippy::unwrap_used)]

use ferrotron_sft::{ChatTemplate, ChatTokenizer, Conversation, Example, Turns, preview};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn conversation(golden: &Value) -> Conversation {
    Conversation::from_record(json!({ "messages": golden["messages"] }), Turns::Strict).unwrap()
}

fn numbers(v: &Value) -> Vec<i64> {
    v.as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
}

#[test]
fn texts_ids_and_masks_equal_transformers() {
    let all: Value = serde_json::from_slice(&std::fs::read(golden("chat.json")).unwrap()).unwrap();
    let mut compared = 0;
    for kind in ["chatml", "llama3"] {
        let chat = ChatTokenizer::from_folder(&golden(kind)).unwrap();
        assert!(chat.template().marks_generation());
        for (name, want) in all["goldens"][kind].as_object().unwrap() {
            if name.starts_with('_') {
                continue;
            }
            let c = conversation(want);
            let (n, prompt) = (c.messages.len(), want["add_generation_prompt"].as_bool().unwrap());
            let rendered = chat.template().render(&c, 0..n, prompt, &Map::new()).unwrap();
            assert_eq!(rendered.text, want["text"].as_str().unwrap(), "{kind} {name}");
            if let Some(text) = want["text_enable_thinking_false"].as_str() {
                let off = Map::from_iter([("enable_thinking".to_string(), false.into())]);
                assert_eq!(chat.template().render(&c, 0..n, prompt, &off).unwrap().text, text, "{kind} {name}");
            }
            let said: Vec<&str> = rendered.generated.iter().map(|span| &rendered.text[span.clone()]).collect();
            assert_eq!(said.concat(), want["assistant_text"].as_str().unwrap().replace("\u{0}", ""), "{kind} {name}");
            let Example { ids, mask } = chat.encode(&c, &Map::new()).unwrap();
            let (want_ids, want_mask) = (numbers(&want["input_ids"]), numbers(&want["assistant_mask"]));
            // Ids of the golden run end with the generation prompt where it was asked for.
            assert_eq!(ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>(), want_ids[..ids.len()], "{kind} {name}");
            assert!(prompt || ids.len() == want_ids.len());
            assert_eq!(mask.iter().map(|&m| i64::from(m)).collect::<Vec<_>>(), want_mask[..ids.len()], "{kind} {name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 12);
}

/// SFT-04: the end of each turn is a target, also where the pad token is the end token.
#[test]
fn sft_04_the_end_of_a_turn_is_a_target() {
    for (kind, end) in [("chatml", "<|im_end|>"), ("llama3", "<|eot_id|>")] {
        let chat = ChatTokenizer::from_folder(&golden(kind)).unwrap();
        let end = chat.tokenizer().token_id(end).unwrap();
        let record = json!({"messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
        ]});
        let example = chat.encode(&Conversation::from_record(record, Turns::Strict).unwrap(), &Map::new()).unwrap();
        let ends: Vec<bool> =
            example.ids.iter().zip(&example.mask).filter(|(id, _)| **id == end).map(|(_, &m)| m).collect();
        assert_eq!(ends, [false, true, false, true], "{kind}");

        let packed = ferrotron_sft::pack(std::slice::from_ref(&example), 64, 1, end).unwrap();
        let targets = packed[0].labels.iter().zip(&packed[0].loss_mask).filter(|(id, m)| **id == end && **m == 1.0);
        assert_eq!(targets.count(), 2, "padding with the same id is no target");
        assert!(packed[0].loss_mask[example.ids.len()..].iter().all(|&m| m == 0.0));
        let shown = preview(chat.tokenizer(), &example).unwrap();
        assert!(shown.contains("⟧") && shown.matches('⟦').count() == 2, "{shown}");
    }
}

/// Without `{% generation %}` the turns are found by rendering the conversation up to each; the same mask.
#[test]
fn templates_without_marks_give_the_same_mask() {
    let folder = std::env::temp_dir().join(format!("ferrotron-sft-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        let mut text = std::fs::read_to_string(golden("llama3").join(name)).unwrap();
        text = text.replace("{% generation %}", "").replace("{% endgeneration %}", "");
        std::fs::write(folder.join(name), text).unwrap();
    }
    let (plain, marked) =
        (ChatTokenizer::from_folder(&folder).unwrap(), ChatTokenizer::from_folder(&golden("llama3")).unwrap());
    assert!(!plain.template().marks_generation());
    let all: Value = serde_json::from_slice(&std::fs::read(golden("chat.json")).unwrap()).unwrap();
    for name in ["single", "system", "multi", "think"] {
        let c = conversation(&all["goldens"]["llama3"][name]);
        assert_eq!(plain.encode(&c, &Map::new()).unwrap(), marked.encode(&c, &Map::new()).unwrap(), "{name}");
    }
    // Qwen's kind of template drops earlier thoughts, so turns are not prefixes.
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        let mut text = std::fs::read_to_string(golden("chatml").join(name)).unwrap();
        text = text.replace("{% generation %}", "").replace("{% endgeneration %}", "");
        std::fs::write(folder.join(name), text).unwrap();
    }
    let plain = ChatTokenizer::from_folder(&folder).unwrap();
    let e = plain.encode(&conversation(&all["goldens"]["chatml"]["think"]), &Map::new()).unwrap_err().to_string();
    assert!(e.contains("message 2") && e.contains("{% generation %}"), "{e}");
    std::fs::remove_file(folder.join("chat_template.jinja")).unwrap();
    let e = ChatTemplate::from_folder(&folder).unwrap_err().to_string();
    assert!(e.contains("chat_template.jinja") && e.contains("there is none"), "{e}");
    std::fs::remove_dir_all(&folder).unwrap();
}
