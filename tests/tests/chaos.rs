//! Streams with seeded delays: layouts train the bits that inline streams train, and leaving out any one of the event waits
//! around the collectives of executor, layers and buckets is a wrong number.

use std::sync::Arc;

use ferrotron_comm::{Fault, Options, Wait};
use ferrotron_config::Resolved;
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::{Device, host};
use ferrotron_tests::{on_ranks, resolved, trainer};
use ferrotron_train::step::Leave;

const MODEL: &str = "--num-layers 2 --hidden-size 16 --ffn-hidden-size 24 --num-attention-heads 2 --seq-length 8 \
    --max-position-embeddings 8 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --hidden-dropout 0.1 --attention-dropout 0.1 --tokenizer-type NullTokenizer --vocab-size 61 \
    --make-vocab-size-divisible-by 16 --mock-data --split 100,0,0 --micro-batch-size 1 --global-batch-size 4 \
    --train-iters 3 --lr 1e-2 --eval-iters 0";
const STEPS: usize = 3;

const SHARDED: &str = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 500";

/// Bits of losses, norms and parameters of one rank.
type Bits = (Vec<(u32, u64)>, Vec<u32>);

/// Trains on `ranks` threads; the text of the error of a run that failed.
fn train(line: &Resolved, ranks: usize, seed: Option<u64>, fault: Option<Fault>) -> Result<Vec<Bits>, String> {
    let options = Options { fault, timeout: std::time::Duration::from_secs(60), ..Options::default() };
    let all = on_ranks(ranks, options, |fabric| {
        let streams = match seed {
            Some(seed) => StreamMode::Chaos { seed: seed * 64 + fabric.rank() as u64 },
            None => StreamMode::Inline,
        };
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuConfig { threads: 1, streams })?);
        let mut t = trainer(device, line, fabric)?;
        let mut numbers = vec![];
        for _ in 0..STEPS {
            let report = t.step(Leave::No)?;
            numbers.push((report.loss.to_bits(), report.grad_norm.to_bits()));
        }
        t.cx.finish_params();
        let mut weights = vec![];
        for (id, _) in t.cx.params.table().iter() {
            let values = host::read_f32(&*t.cx.device, &t.cx.stream, &t.cx.params.weight(id))?;
            weights.extend(values.iter().map(|v| v.to_bits()));
        }
        Ok((numbers, weights))
    });
    all.into_iter().map(|r| r.map_err(|e| e.to_string())).collect()
}

#[test]
fn delays_change_no_bit() {
    for (ranks, layout) in [
        (2, ""),
        (2, SHARDED),
        (4, SHARDED),
        (2, "--overlap-grad-reduce --grad-reduce-in-bf16 --ddp-bucket-size 500"),
        (4, &format!("{SHARDED} --num-distributed-optimizer-instances 2 --grad-reduce-in-bf16")),
        (4, "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"),
        (4, "--pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce"),
    ] {
        let line = resolved(&format!("{MODEL} {layout}"), ranks);
        let inline = train(&line, ranks, None, None).unwrap();
        assert!(inline.iter().all(|r| r.0.len() == STEPS && !r.1.is_empty()));
        for seed in [1, 2] {
            assert_eq!(
                train(&line, ranks, Some(seed), None).as_ref(),
                Ok(&inline),
                "{ranks} ranks {layout}, seed {seed}"
            );
        }
    }
}

#[test]
fn every_wait_that_is_left_out_is_a_wrong_number() {
    let pipe = "--pipeline-model-parallel-size 2";
    let tensor = "--tensor-model-parallel-size 2";
    let instances = format!("{SHARDED} --num-distributed-optimizer-instances 2");
    for (ranks, layout, groups) in [
        (2, SHARDED, &["dp/grads", "dp/params", "world/steps"][..]),
        (4, &instances, &["instance/grads", "across/grads"]),
        (2, tensor, &["tp/layers"]),
        (2, pipe, &["pp 0>1/forward", "pp 1>0/backward", "embedding/grads"]),
    ] {
        let line = resolved(&format!("{MODEL} {layout}"), ranks);
        let inline = train(&line, ranks, None, None);
        assert!(inline.is_ok());
        for group in groups {
            for missing in [Wait::Home, Wait::Result] {
                let fault = || Some(Fault { missing, group: Some(group.to_string()) });
                // Only numbers count: an error of another kind would say nothing about the wait.
                let wrong = |seed| match train(&line, ranks, Some(seed), fault()) {
                    Ok(got) => Ok(got) != inline,
                    Err(e) => e.contains("is not finite") || panic!("{group}, {missing:?}: {e}"),
                };
                // Delays are drawn: a run may be lucky, a few are not.
                assert!((1..=8).any(wrong), "{group} without its wait for {missing:?} goes unnoticed");
            }
        }
    }
}
