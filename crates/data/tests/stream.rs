//! Samples against their definition: slices of the stream of shuffled documents, masked by an O(S²) rule.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Scratch, config};
use ferrotron_data::{Dataset, GptDataset, IndexedDataset, IndexedWriter, Sample, SplitDataset, TokenType, Tokens};
use ferrotron_data::{build_datasets, indexed::Multimodal};
use proptest::prelude::*;

const EOD: i32 = 0;
const PAD: i32 = 9;

/// All documents in the dataset's order, joined.
fn stream(dataset: &GptDataset, files: &IndexedDataset) -> Vec<i32> {
    let mut stream = Vec::new();
    for d in dataset.document_index().iter() {
        files.read(d as usize, 0, files.length(d as usize), &mut stream).unwrap();
    }
    stream
}

/// Position `i` sees position `j` when it comes no later and no end of document stands between them.
fn sees(tokens: &[i32], i: usize, j: usize) -> bool {
    j <= i && !tokens[j..i].contains(&EOD)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn samples_are_slices_of_the_stream(
        documents in prop::collection::vec(prop::collection::vec(0i64..9, 0..25), 1..12),
        s in 1usize..20, seed: u32, requested in prop::option::of(0u64..40),
        extra: bool, drop_last: bool, resets: [bool; 3], validation: bool,
    ) {
        let total: usize = documents.iter().map(Vec::len).sum();
        prop_assume!(total > s);
        let scratch = Scratch::new();
        let prefix = scratch.file("d");
        let mut writer = IndexedWriter::create(&prefix, TokenType::U8).unwrap();
        for document in &documents {
            writer.add_sequence(document.iter().copied()).unwrap();
            writer.end_document();
        }
        writer.finish().unwrap();

        let split = if validation { "0,1,0" } else { "1,0,0" };
        let mut config = config(&[prefix.to_str().unwrap()], split, s, seed);
        config.requested = [requested; 3];
        config.gpt.add_extra_token = extra;
        config.gpt.drop_last_partial_validation_sequence = drop_last;
        let rules = &mut config.gpt.rules;
        (rules.pad, rules.padded_vocab_size) = (Some(PAD), 9);
        [rules.reset_position_ids, rules.reset_attention_mask, rules.eod_mask_loss] = resets;
        let built = build_datasets(&config).unwrap();
        let built = if validation { built.valid } else { built.train }.unwrap();
        let SplitDataset::Gpt(dataset) = &*built else { panic!("one file without weight is no blend") };

        let files = IndexedDataset::open(&prefix, Multimodal::No).unwrap();
        let stream = stream(dataset, &files);
        prop_assert_eq!(stream.len() as u64, total as u64 * dataset.epochs());
        let partial = validation && !drop_last;
        let reads = stream.len() - usize::from(extra);
        prop_assert_eq!(dataset.len(), if partial { reads.div_ceil(s) } else { reads / s });
        prop_assert!(dataset.len() as u64 >= requested.unwrap_or(0));

        let mut sample = Sample::default();
        for i in 0..dataset.len() {
            dataset.get(i, &mut sample).unwrap();
            let begin = dataset.shuffled(i).unwrap() * s;
            let at = |p: usize| stream.get(p).copied().unwrap_or(PAD);
            let tokens: Vec<i32> = (begin..begin + s).map(at).collect();
            let mut labels: Vec<i32> = (begin + 1..begin + s + 1).map(at).collect();
            if !extra {
                labels[s - 1] = PAD;
            }
            let segment = |p: usize| sample.segment_starts.iter().filter(|&&start| start as usize <= p).count();
            for p in 0..s {
                prop_assert_eq!(sample.tokens[p], if tokens[p] == PAD { 0 } else { tokens[p] });
                prop_assert_eq!(sample.labels[p], if labels[p] == PAD { 0 } else { labels[p] });
                let counts = labels[p] != PAD && !(resets[2] && tokens[p] == EOD);
                prop_assert_eq!(sample.loss_mask[p], if counts { 1.0 } else { 0.0 });
                let first = (0..=p).find(|&j| !resets[0] || sees(&tokens, p, j)).unwrap();
                prop_assert_eq!(sample.position_ids[p] as usize, p - first);
                for j in 0..=p {
                    prop_assert_eq!(segment(j) == segment(p), !resets[1] || sees(&tokens, p, j));
                }
            }
        }
        prop_assert!(dataset.get(dataset.len(), &mut sample).is_err());
    }
}
