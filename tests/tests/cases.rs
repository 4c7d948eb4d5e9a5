//! One rank of several that goes wrong: the cause is its own error, and the others end as its peers, naming it.

use std::sync::Arc;

use ferrotron_comm::{Fabric, Options};
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::{DType, DevPtr, Device, DeviceInfo, Ops, Region, Stream, StreamRole, Tensor, host};
use ferrotron_tests::{on_ranks, resolved, trainer};
use ferrotron_train::step::Leave;
use ferrotron_train::{Error, Trainer};

const MODEL: &str = "--num-layers 2 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 --seq-length 16 \
    --max-position-embeddings 16 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --hidden-dropout 0 --attention-dropout 0 --tokenizer-type NullTokenizer --vocab-size 255 --mock-data \
    --split 100,0,0 --micro-batch-size 1 --global-batch-size 4 --train-iters 4 --lr 1e-2 --eval-iters 0 \
    --untie-embeddings-and-output-weights";
const RANKS: usize = 4;

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 1, streams: StreamMode::Inline }).expect("the CPU device")
}

/// Errors of all ranks: whose it is, and what the peers say.
fn errors(
    layout: &str,
    device: impl Fn(usize) -> Arc<dyn Device> + Sync,
    before: impl Fn(&mut Trainer) + Sync,
) -> Vec<(Error, String)> {
    let line = resolved(&format!("{MODEL} {layout}"), RANKS);
    let all = on_ranks(RANKS, Options::default(), |fabric: Arc<dyn Fabric>| {
        let mut t = trainer(device(fabric.rank()), &line, fabric)?;
        before(&mut t);
        let at = t.world.at.clone();
        let end = (0..4).try_for_each(|_| t.step(Leave::No).map(drop));
        Ok((end.expect_err("a rank that fails"), at.to_string()))
    });
    all.into_iter().map(|r| r.expect("built")).collect()
}

/// Words of this rank's batch of two samples, of all ranks one after another.
fn words_of_all(t: &mut Trainer) -> Vec<i32> {
    let micros = t.data.train.as_mut().expect("training data").global_batch(0, 2).expect("a batch");
    let own: Vec<i32> = micros.iter().flat_map(|m| m.ids.iter().copied()).collect();
    let (cx, n) = (&t.cx, own.len());
    let mut x = cx.pool.alloc(DType::I32, [n]).expect("memory");
    host::write_i32(&*cx.device, &cx.stream, &own, &mut x).expect("written");
    let all = cx.pool.alloc(DType::I32, [n * RANKS]).expect("memory");
    let all = cx.groups.world.all_gather(&cx.stream, x, all).expect("a gather").wait();
    let mut bytes = vec![0u8; all.bytes()];
    cx.device.download(&cx.stream, &all, &mut bytes).expect("read");
    bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Pai-Megatron-Patch#60, Megatron-LM#5782: one rank found the NaN, the others timed out, and the batch stayed unknown. Here a
/// word's vector is NaN, which only the second sample of rank 3 has: rank 3 tells, with micro-batch, sample and parameter, and
/// the others end with it.
#[test]
fn opt_03_a_nan_is_told_by_the_rank_whose_data_brought_it() {
    let nan = |t: &mut Trainer| {
        let all = words_of_all(t);
        let (others, mine) = all.split_at(all.len() - all.len() / RANKS / 2);
        let word = *mine.iter().find(|w| !others.contains(w)).expect("a word of one sample alone");
        let (id, _) =
            t.cx.params.table().iter().find(|(_, p)| p.shard.name.contains("word_embeddings")).expect("an embedding");
        let mut row = t.cx.params.weight(id).rows_view(word as usize, 1);
        host::write_f32(&*t.cx.device, &t.cx.stream, &[f32::NAN; 32], &mut row).expect("written");
    };
    for layout in ["", "--use-distributed-optimizer --overlap-grad-reduce"] {
        let all = errors(&format!("{layout} --global-batch-size 8"), |_| Arc::new(cpu()), nan);
        for (rank, (e, at)) in all.iter().enumerate() {
            assert_eq!(at, "iteration 1, step numbers");
            assert_eq!(e.is_of_peer(), rank != 3, "rank {rank}: {e}");
            assert!(e.to_string().contains("the loss is not finite (NaN)"), "{e}");
            assert!(rank == 3 || e.to_string().contains("rank 3: iteration 1: "), "{e}");
            assert!(e.to_string().contains("word_embeddings.weight on rank 0 holds values that are not finite"), "{e}");
        }
        let told = all[3].0.to_string();
        assert!(told.contains("first in micro-batch 2 of 2 (sample 7 of the run)"), "{told}");
    }
}

/// The loss is fine and a gradient is not: the parameter is named, by the rank that owns the broken range.
#[test]
fn opt_02_a_gradient_that_is_not_finite_names_its_parameter() {
    let steep = |t: &mut Trainer| {
        // Tiny outputs of the last norm and huge weights of the head: logits of ordinary size, a gradient beyond f32.
        for (part, value) in [("final_layernorm", 2e-38f32), ("output_layer", 3e38)] {
            let (id, _) = t.cx.params.table().iter().find(|(_, p)| p.shard.name.contains(part)).expect("a parameter");
            let mut w = t.cx.params.weight(id);
            let signs = (0..w.numel()).map(|i| if (i / 32 * 7 + i) % 3 == 0 { value } else { -value });
            let values: Vec<f32> = signs.collect();
            host::write_f32(&*t.cx.device, &t.cx.stream, &values, &mut w).expect("written");
        }
    };
    for layout in ["", "--use-distributed-optimizer --overlap-grad-reduce"] {
        let all = errors(&format!("{layout} --calculate-per-token-loss"), |_| Arc::new(cpu()), steep);
        assert_eq!(all.iter().filter(|(e, _)| !e.is_of_peer()).count(), 1);
        let told = all.iter().find(|(e, _)| !e.is_of_peer()).expect("one tells").0.to_string();
        assert!(told.contains("iteration 1: the gradient norm is not finite"), "{told}");
        assert!(told.contains("first in the gradient of ") && told.contains("final_layernorm.weight"), "{told}");
    }
}

/// A CPU device that tells of less memory than there is.
struct Small {
    inner: CpuDevice,
    info: DeviceInfo,
}

impl Device for Small {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn ops(&self) -> &dyn Ops {
        self.inner.ops()
    }
    fn stream(&self, role: StreamRole) -> ferrotron_device::Result<Stream> {
        self.inner.stream(role)
    }
    fn reserve(&self, bytes: usize, what: &'static str) -> ferrotron_device::Result<Arc<dyn Region>> {
        self.inner.reserve(bytes, what)
    }
    fn upload(&self, s: &Stream, src: &[u8], dst: &mut Tensor) -> ferrotron_device::Result<()> {
        self.inner.upload(s, src, dst)
    }
    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> ferrotron_device::Result<()> {
        self.inner.download(s, src, dst)
    }
    fn fill_bytes(&self, s: &Stream, ptr: DevPtr, bytes: usize, value: u8) -> ferrotron_device::Result<()> {
        self.inner.fill_bytes(s, ptr, bytes, value)
    }
}

#[test]
fn out_of_memory_on_one_rank_ends_all_with_its_cause() {
    // Activations of 24 samples of 64 tokens take more than 2 MiB, the least that a pool can be limited to.
    let large = "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 24 --global-batch-size 96";
    let device = |rank: usize| -> Arc<dyn Device> {
        let inner = cpu();
        let mut info = inner.info().clone();
        if rank == 2 {
            info.memory = 2 << 20;
        }
        Arc::new(Small { inner, info })
    };
    let line = resolved(&format!("{MODEL} {large}"), RANKS);
    let all = on_ranks(RANKS, Options::default(), |fabric: Arc<dyn Fabric>| {
        let mut t = trainer(device(fabric.rank()), &line, fabric)?;
        t.step(Leave::No).map(drop)
    });
    for (rank, end) in all.into_iter().enumerate() {
        let e = end.expect_err("all ranks end");
        assert_eq!(e.is_of_peer(), rank != 2, "rank {rank}: {e}");
        assert!(e.to_string().contains("out of memory on cpu:0"), "{e}");
        assert!(e.to_string().contains("of 2097152 in use"), "{e}");
    }
}
