//! The table of HCCL over the mock: every collective moves what it says, calls that differ are errors with the vendor's
//! codes, and a rank that does not come does not hang the others.

mod common;

use std::time::{Duration, Instant};

use common::ranks::{Rank, root_info, run};
use ferrotron_hccl_sys::*;

const F32: HcclDataType = HCCL_DATA_TYPE_FP32;

fn values(rank: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| (10 * rank + i) as f32).collect()
}

#[test]
fn every_collective_of_the_table() {
    let home = common::home("hccl");
    let out = run(&home, 4, |r| {
        let (x, y) = (r.put(&values(r.rank, 4)), r.put(&[0.0; 16]));
        let (h, c, s) = (&r.hccl, r.comm, r.stream);
        let got = |n| r.get(y, n).unwrap();
        // SAFETY: buffers of 4 and 16 floats; counts are below that.
        unsafe {
            assert_eq!((h.HcclAllReduce)(x, y, 2, F32, HCCL_REDUCE_SUM, c, s), 0);
            let all_reduce = got(2);
            assert_eq!((h.HcclAllGather)(x, y, 2, F32, c, s), 0);
            let all_gather = got(8);
            assert_eq!((h.HcclReduceScatter)(x, y, 1, F32, HCCL_REDUCE_MAX, c, s), 0);
            let reduce_scatter = got(1);
            assert_eq!(h.HcclAlltoAll.unwrap()(x, 1, F32, y, 1, F32, c, s), 0);
            let all_to_all = got(4);
            // to rank r: r elements
            let (to, from) = ([0u64, 1, 2, 1], [r.rank as u64; 4]);
            let to: [u64; 4] =
                if r.rank == 3 { [0, 1, 2, 3] } else { std::array::from_fn(|p| if p == 3 { 3 } else { to[p] }) };
            let at = |n: [u64; 4]| [0, n[0], n[0] + n[1], n[0] + n[1] + n[2]];
            let (at_to, at_from) = (at(to), at(from));
            let wide = r.put(&values(r.rank, 6));
            let p = |n: &[u64; 4]| n.as_ptr().cast();
            assert_eq!((h.HcclAlltoAllV)(wide, p(&to), p(&at_to), F32, y, p(&from), p(&at_from), F32, c, s), 0);
            let all_to_all_v = got(4 * r.rank);
            let (next, before) = ((r.rank as u32 + 1) % 4, (r.rank as u32 + 3) % 4);
            let mut items = [
                HcclSendRecvItem { sendRecvType: HCCL_RECV, buf: y, count: 3, dataType: F32, remoteRank: before },
                HcclSendRecvItem { sendRecvType: HCCL_SEND, buf: x, count: 3, dataType: F32, remoteRank: next },
            ];
            assert_eq!(h.HcclBatchSendRecv.unwrap()(items.as_mut_ptr(), 2, c, s), 0);
            let ring = got(3);
            assert_eq!((h.HcclBroadcast)(x, 4, F32, 2, c, s), 0);
            let broadcast = r.get(x, 4).unwrap();
            assert_eq!(h.HcclBarrier.unwrap()(c, s), 0);
            r.get(x, 4).unwrap(); // a communicator goes when its stream is idle
            assert_eq!(r.async_error(), 0);
            [all_reduce, all_gather, reduce_scatter, all_to_all, all_to_all_v, ring, broadcast]
        }
    });
    for (rank, o) in out.iter().enumerate() {
        assert_eq!(o[0], [60.0, 64.0]);
        assert_eq!(o[1], [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0]);
        assert_eq!(o[2], [30.0 + rank as f32]);
        assert_eq!(o[3], [0, 1, 2, 3].map(|from| (10 * from + rank) as f32));
        let first = rank * (rank - rank.min(1)) / 2; // elements for ranks before this one: 0 + 1 + ... + rank - 1
        let parts: Vec<f32> = (0..4).flat_map(|f| (0..rank).map(move |i| (10 * f + first + i) as f32)).collect();
        assert_eq!(o[4], parts);
        assert_eq!(o[5], values((rank + 3) % 4, 3));
        assert_eq!(o[6], values(2, 4));
    }
    let control = common::control();
    assert_eq!([0, 1, 2, 3].map(|d| control.report(d)), ["", "", "", ""]);
    common::remove(&home);
}

#[test]
fn what_ranks_disagree_on_and_what_the_chip_cannot_do_are_errors() {
    let home = common::home("hccl-errors");
    let out = run(&home, 2, |r| {
        let x = r.put(&[1.0; 4]);
        let (h, c, s) = (&r.hccl, r.comm, r.stream);
        // SAFETY: a buffer of 4 floats; counts are at most that.
        unsafe {
            // refused at once: no such reduction on 910B and 910C, a null and an unaligned address
            assert_eq!((h.HcclAllReduce)(x, x, 1, HCCL_DATA_TYPE_FP64, HCCL_REDUCE_SUM, c, s), 5);
            assert_eq!((h.HcclAllReduce)(x, x, 1, HCCL_DATA_TYPE_BFP16, HCCL_REDUCE_PROD, c, s), 5);
            assert_eq!((h.HcclAllReduce)(std::ptr::null_mut(), x, 1, F32, HCCL_REDUCE_SUM, c, s), 1);
            assert_eq!((h.HcclAllReduce)(x.byte_add(2), x, 1, F32, HCCL_REDUCE_SUM, c, s), 1);
            assert_eq!((h.HcclSend)(x, 1, F32, 7, c, s), 1);
            // the call is taken, the failure comes at the stream: ranks differ in the count
            assert_eq!((h.HcclAllReduce)(x, x, 3 + r.rank as u64, F32, HCCL_REDUCE_SUM, c, s), 0);
        }
        let error = r.get(x, 4).unwrap_err();
        // SAFETY: the text lives until the next call.
        let text = unsafe { std::ffi::CStr::from_ptr((r.acl.aclGetRecentErrMsg)()) }.to_string_lossy().into_owned();
        (error, r.async_error(), text)
    });
    for (error, later, text) in out {
        assert_eq!((error, later), (107020, 1));
        assert!(
            text.contains("EI0005") && text.contains("rank 0 calls Call { kind: AllReduce(Sum), count: 3"),
            "{text}"
        );
        assert!(text.contains("rank 1 calls Call { kind: AllReduce(Sum), count: 4"), "{text}");
    }
    common::remove(&home);
}

/// Alone in its process would be better: the patience is the mock's, but communicators of other tests are done long
/// before a second has passed.
#[test]
fn a_rank_that_does_not_come_is_named_in_time() {
    let home = common::home("hccl-lost");
    // SAFETY: a number.
    unsafe { (common::control().own.ferrotronMockHcclPatience)(1000) };
    let start = Instant::now();
    let info = root_info(&home);
    // nobody else joins
    let lost = Rank::join(&home, 2, 0, &info).map(|_| ()).unwrap_err();
    assert_eq!(lost, 9);
    // both join, one does not call
    let out = run(&home, 2, |r| {
        let x = r.put(&[1.0]);
        if r.rank == 1 {
            return (0, 0);
        }
        // SAFETY: a buffer of one float.
        assert_eq!(unsafe { (r.hccl.HcclAllReduce)(x, x, 1, F32, HCCL_REDUCE_SUM, r.comm, r.stream) }, 0);
        (r.get(x, 1).unwrap_err(), r.async_error())
    });
    assert_eq!(out, [(107020, 9), (0, 0)]);
    assert!(start.elapsed() < Duration::from_secs(10));
    common::remove(&home);
}
