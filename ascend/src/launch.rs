//! One op of the contract as a sequence of operators on a stream.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, MutexGuard};

use ferrotron_acl_sys::ops::Op;
use ferrotron_acl_sys::{self as acl, OpApi, code};
use ferrotron_device::{Error, Result, Stream};

use crate::memory::{Mark, Slab};
use crate::shared::{Omit, lock};
use crate::stream::{AscendStream, Core};
use crate::view::View;

/// A scalar argument.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// Of float tensors.
    F32(f32),
    /// Of integer tensors.
    I64(i64),
}

impl From<f32> for Number {
    fn from(v: f32) -> Number {
        Number::F32(v)
    }
}

enum Object {
    Tensor(*const acl::aclTensor),
    Scalar(*const acl::aclScalar),
    Ints(*const acl::aclIntArray),
    Bools(*const acl::aclBoolArray),
}

/// An op that is being launched. It holds the stream's scratch, so that ops of one stream do not mix.
pub struct Launch<'a> {
    core: &'a Arc<Core>,
    slab: MutexGuard<'a, Slab>,
    pinned: MutexGuard<'a, Slab>,
    objects: Vec<Object>,
    op: &'static str,
}

impl<'a> Launch<'a> {
    /// Begins op `op` of the contract on a stream.
    pub fn begin(s: &'a Stream, op: &'static str) -> Result<Launch<'a>> {
        let core = AscendStream::of(s)?;
        core.begin()?;
        let (mut slab, mut pinned) = (lock(&core.slab), lock(&core.pinned));
        slab.reset();
        pinned.reset();
        Ok(Launch { core, slab, pinned, objects: Vec::new(), op })
    }

    /// The stream.
    pub fn core(&self) -> &'a Arc<Core> {
        self.core
    }

    /// A point to which [`Launch::release`] goes back.
    pub fn mark(&self) -> [Mark; 2] {
        [self.slab.mark(), self.pinned.mark()]
    }

    /// Gives all scratch and pinned memory since the mark to what is launched from now on: for an op in many parts.
    pub fn release(&mut self, [slab, pinned]: [Mark; 2]) {
        self.slab.release(slab);
        self.pinned.release(pinned);
        self.destroy();
    }

    /// Pinned memory for copies and host functions of the stream, until the next op.
    pub fn pinned(&mut self, bytes: usize) -> Result<usize> {
        self.pinned.take(&self.core.shared, bytes)
    }

    /// The op of the contract.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Undefined scratch, until the next op of the stream.
    pub fn scratch(&mut self, dtype: acl::aclDataType, dims: &[usize]) -> Result<View> {
        let size = match dtype {
            acl::ACL_BOOL => 1,
            acl::ACL_BF16 | acl::ACL_FLOAT16 => 2,
            acl::ACL_INT64 => 8,
            _ => 4,
        };
        let bytes = dims.iter().product::<usize>() * size;
        Ok(View::new(self.slab.take(&self.core.shared, bytes)? as u64, dtype, dims))
    }

    /// Float32 scratch.
    pub fn f32(&mut self, dims: &[usize]) -> Result<View> {
        self.scratch(acl::ACL_FLOAT, dims)
    }

    /// An operand of an operator.
    pub fn tensor(&mut self, v: &View) -> Result<*mut acl::aclTensor> {
        let signed = |d: &[usize]| d.iter().map(|&d| d as i64).collect::<Vec<i64>>();
        let (dims, strides, storage) = (signed(&v.dims), signed(&v.strides), [v.storage() as i64]);
        // SAFETY: arrays of the lengths given; the memory is the caller's and covers the storage.
        let made = unsafe {
            (self.core.shared.cann.nn.aclCreateTensor)(
                dims.as_ptr(),
                dims.len() as u64,
                v.dtype,
                strides.as_ptr(),
                v.offset as i64,
                acl::ACL_FORMAT_ND,
                storage.as_ptr(),
                1,
                v.at as *mut c_void,
            )
        };
        if made.is_null() {
            let shared = &self.core.shared;
            return Err(shared.failed(shared.in_words("aclCreateTensor gives null", code::NN_INVALID)));
        }
        self.objects.push(Object::Tensor(made));
        Ok(made)
    }

    /// A scalar operand.
    pub fn number(&mut self, n: impl Into<Number>) -> *const acl::aclScalar {
        let create = self.core.shared.cann.nn.aclCreateScalar;
        // SAFETY: a pointer to a value of that type, which the call copies.
        let made = unsafe {
            match n.into() {
                Number::F32(mut v) => create((&raw mut v).cast(), acl::ACL_FLOAT),
                Number::I64(mut v) => create((&raw mut v).cast(), acl::ACL_INT64),
            }
        };
        self.objects.push(Object::Scalar(made));
        made
    }

    /// An array of dims.
    pub fn ints(&mut self, values: &[i64]) -> *const acl::aclIntArray {
        // SAFETY: an array of this length, which the call copies.
        let made = unsafe { (self.core.shared.cann.nn.aclCreateIntArray)(values.as_ptr(), values.len() as u64) };
        self.objects.push(Object::Ints(made));
        made
    }

    /// An array of flags.
    pub fn bools(&mut self, values: &[bool]) -> *const acl::aclBoolArray {
        // SAFETY: as above.
        let made = unsafe { (self.core.shared.cann.nn.aclCreateBoolArray)(values.as_ptr(), values.len() as u64) };
        self.objects.push(Object::Bools(made));
        made
    }

    /// Plans and runs an operator. `views` are its operands, for error messages; `plan` is its first phase.
    pub fn run<F: Copy>(
        &mut self,
        pick: impl FnOnce(&OpApi) -> &Option<Op<F>>,
        name: &'static str,
        views: &[&View],
        plan: impl FnOnce(F, *mut u64, *mut *mut acl::aclOpExecutor) -> acl::aclnnStatus,
    ) -> Result<()> {
        let shared = &self.core.shared;
        let Some(op) = *pick(&shared.cann.ops) else {
            let why = format!("this release of CANN has no {name}, which {} is made of", self.op);
            return Err(Error::Unsupported { op: self.op, device: shared.name.clone(), why });
        };
        lock(&shared.used).insert((self.op, op.name));
        let operands: Vec<String> = views.iter().map(|v| format!("{:?}:{}", v.dims, v.dtype)).collect();
        self.core.note(format!("{} in {}({})", op.name, self.op, operands.join(", ")));
        let (mut bytes, mut executor) = (0, std::ptr::null_mut());
        let status = plan(op.plan, &mut bytes, &mut executor);
        self.core.check(op.name, status)?;
        if shared.omits(Omit::WorkspaceSize) {
            bytes /= 2;
        }
        let workspace = match self.slab.take(shared, bytes as usize) {
            Ok(at) => at,
            Err(e) => {
                // an executor that no second phase uses up leaks
                if !shared.omits(Omit::DestroyExecutor) {
                    // SAFETY: the executor was just made, and this is its last use.
                    unsafe { (shared.cann.nn.aclDestroyAclOpExecutor)(executor) };
                }
                return Err(e);
            }
        };
        // SAFETY: the workspace has the bytes asked for and is the stream's until the next op; the executor is fresh.
        let status = unsafe { (op.run)(workspace as *mut c_void, bytes, executor, self.core.handle()) };
        self.core.check(op.name, status)?;
        if shared.options.blocking { self.core.synchronize() } else { Ok(()) }
    }
}

impl Launch<'_> {
    /// Ends the operands made so far.
    fn destroy(&mut self) {
        let nn = &self.core.shared.cann.nn;
        for o in self.objects.drain(..) {
            // SAFETY: ours; the operators that took them have been launched.
            unsafe {
                match o {
                    Object::Tensor(t) => (nn.aclDestroyTensor)(t),
                    Object::Scalar(s) => (nn.aclDestroyScalar)(s),
                    Object::Ints(a) => (nn.aclDestroyIntArray)(a),
                    Object::Bools(a) => (nn.aclDestroyBoolArray)(a),
                }
            };
        }
    }
}

impl Drop for Launch<'_> {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A C string argument, which the interface takes as mutable.
pub fn text(s: &'static std::ffi::CStr) -> *mut c_char {
    s.as_ptr().cast_mut()
}
