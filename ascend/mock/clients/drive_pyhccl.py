"""Runs the collectives of the unmodified package pyhccl against the mock's libhccl. docs/ascend.md tells how."""

import ctypes

import pyhccl

RANKS = 4
TO_DEVICE, TO_HOST = 1, 2

assert pyhccl.load_library(), "no libhccl.so on LD_LIBRARY_PATH"
acl = ctypes.CDLL("libhccl.so")  # the mock is one file: AscendCL is in it too
pointer, size = ctypes.c_void_p, ctypes.c_size_t
acl.aclrtMalloc.argtypes = [pointer, size, ctypes.c_int]
acl.aclrtMemcpy.argtypes = [pointer, size, pointer, size, ctypes.c_int]
acl.aclrtSynchronizeStream.argtypes = [pointer]


def ok(result):
    code = result[0] if isinstance(result, tuple) else result
    assert code == 0, f"status {code}"
    return result


class Rank:
    def __init__(self, rank, info):
        self.rank = rank
        ok(acl.aclrtSetDevice(rank))
        stream = pointer()
        ok(acl.aclrtCreateStreamWithConfig(ctypes.byref(stream), 0, 1))
        self.stream = stream.value
        config = pyhccl.HcclCommConfig()
        pyhccl.HcclCommConfigInit(config)
        config.hcclCommName, config.hcclBufferSize = "dp", 64
        self.comm = ok(pyhccl.HcclCommInitRootInfoConfig(RANKS, info, rank, config))[1]
        assert pyhccl.HcclGetRankSize(self.comm)[1] == RANKS
        self.send, self.recv = self.put([rank, 10 * rank, 1, 1]), self.put([0] * 16)

    def put(self, values):
        block, array = pointer(), (ctypes.c_float * len(values))(*values)
        ok(acl.aclrtMalloc(ctypes.byref(block), 4 * len(values), 0))
        ok(acl.aclrtMemcpy(block, 4 * len(values), ctypes.addressof(array), 4 * len(values), TO_DEVICE))
        return block.value

    def get(self, block, n):
        ok(acl.aclrtSetDevice(self.rank))
        ok(acl.aclrtSynchronizeStream(self.stream))
        array = (ctypes.c_float * n)()
        ok(acl.aclrtMemcpy(ctypes.addressof(array), 4 * n, block, 4 * n, TO_HOST))
        return list(array)


ok(acl.aclInit(None))
ok(acl.aclrtSetDevice(0))
info = ok(pyhccl.HcclGetRootInfo())[1]
ranks = [Rank(r, info) for r in range(RANKS)]


def check(name, call, n, want, of=lambda r: r.recv):
    for r in ranks:
        ok(acl.aclrtSetDevice(r.rank))
        ok(call(r))
    got = [r.get(of(r), n) for r in ranks]
    assert got == want, f"{name}: {got}, not {want}"
    print(name, "right")


F32, SUM = pyhccl.HCCL_DATA_TYPE_FP32, pyhccl.HCCL_REDUCE_SUM
check("AllReduce", lambda r: pyhccl.HcclAllReduce(r.send, r.recv, 2, F32, SUM, r.comm, r.stream), 2, [[6, 60]] * 4)
check("AllGather", lambda r: pyhccl.HcclAllGather(r.send, r.recv, 1, F32, r.comm, r.stream), 4, [[0, 1, 2, 3]] * 4)
check(
    "ReduceScatter",
    lambda r: pyhccl.HcclReduceScatter(r.send, r.recv, 1, F32, SUM, r.comm, r.stream),
    1,
    [[6], [60], [4], [4]],
)
check("AlltoAll", lambda r: pyhccl.HcclAlltoAll(r.send, 1, F32, r.recv, 1, F32, r.comm, r.stream), 4,
      [[0, 1, 2, 3], [0, 10, 20, 30], [1] * 4, [1] * 4])
check("Broadcast", lambda r: pyhccl.HcclBroadcast(r.send, 2, F32, 3, r.comm, r.stream), 2, [[3, 30]] * 4, lambda r: r.send)
for r in ranks:
    ok(pyhccl.HcclCommDestroy(r.comm))
