//! Planned calls of operators.

use std::ffi::c_void;
use std::sync::Arc;

use ferrotron_acl_sys as acl;
use ferrotron_mock::memory::POISON;
use ferrotron_mock::{Access, Fault, Task};

use crate::tensor::Tensor;
use crate::world::{Answer, Object, answer, lock, refuse, world};

type Compute = Box<dyn FnOnce(&[Vec<f64>]) -> Result<Vec<Vec<f64>>, Fault> + Send>;

/// A call between its phases.
pub struct Plan {
    pub name: &'static str,
    inputs: Vec<Arc<Tensor>>,
    outputs: Vec<Arc<Tensor>>,
    compute: Compute,
}

impl Plan {
    /// Values of the outputs from those of the inputs.
    pub fn new(
        inputs: Vec<Arc<Tensor>>,
        outputs: Vec<Arc<Tensor>>,
        compute: impl FnOnce(&[Vec<f64>]) -> Vec<Vec<f64>> + Send + 'static,
    ) -> Plan {
        Plan::fallible(inputs, outputs, |x| Ok(compute(x)))
    }

    /// As [`Plan::new`], for operators that may fail when they run.
    pub fn fallible(
        inputs: Vec<Arc<Tensor>>,
        outputs: Vec<Arc<Tensor>>,
        compute: impl FnOnce(&[Vec<f64>]) -> Result<Vec<Vec<f64>>, Fault> + Send + 'static,
    ) -> Plan {
        Plan { name: "", inputs, outputs, compute: Box::new(compute) }
    }

    /// Workspace: an odd size that differs by operator, so that a fixed one is too small somewhere.
    fn workspace(&self) -> usize {
        512 + 32 * self.name.len() + self.outputs.iter().map(|o| o.numel()).sum::<usize>()
    }

    /// The task: poison the workspace, read, compute, write, poison again.
    fn task(self, workspace: usize) -> Task {
        let bytes = self.workspace();
        let mut accesses: Vec<Access> = self.inputs.iter().map(|t| t.read_access()).collect();
        accesses.extend(self.outputs.iter().map(|t| t.write_access()));
        accesses.push(Access::write(workspace, bytes));
        Task::new(self.name, accesses, move || {
            // SAFETY: the engine found the workspace live when the task was queued, and keeps pages that are freed.
            let poison = || unsafe { std::ptr::write_bytes(workspace as *mut u8, POISON, bytes) };
            poison();
            // SAFETY: as above, for inputs and outputs; unordered writers are reported.
            let values: Vec<Vec<f64>> = self.inputs.iter().map(|t| unsafe { t.read() }).collect();
            let results = (self.compute)(&values)?;
            for (t, v) in self.outputs.iter().zip(&results) {
                // SAFETY: as above.
                unsafe { t.write(v) };
            }
            poison();
            Ok(())
        })
    }
}

/// Phase one: keeps the plan and gives its handle and workspace.
pub fn plan(
    name: &'static str,
    planned: impl FnOnce() -> Answer<Plan>,
    workspace_size: *mut u64,
    executor: *mut *mut acl::aclOpExecutor,
) -> acl::aclnnStatus {
    answer(&format!("{name}GetWorkspaceSize"), |w| {
        let (_, device) = w.current()?;
        if workspace_size.is_null() || executor.is_null() {
            return refuse(acl::code::NN_NULLPTR, "EZ1001: workspaceSize or executor is null");
        }
        let plan = Plan { name, ..planned()? };
        let handle = w.handle();
        // SAFETY: both are out-parameters and not null.
        unsafe {
            *workspace_size = plan.workspace() as u64;
            *executor = handle as *mut acl::aclOpExecutor;
        }
        lock(&w.executors).insert(handle, (device, plan));
        Ok(())
    })
}

/// Phase two: uses the executor up.
pub fn run(
    name: &'static str,
    workspace: *mut c_void,
    size: u64,
    executor: *mut acl::aclOpExecutor,
    stream: acl::aclrtStream,
) -> acl::aclnnStatus {
    answer(name, |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let Some((_, plan)) = lock(&w.executors).remove(&(executor as usize)) else {
            return refuse(
                561103,
                format!("EZ9999: the executor of {name} is null, was used before, or was destroyed"),
            );
        };
        if plan.name != name {
            return refuse(acl::code::NN_INVALID, format!("EZ1001: the executor of {} given to {name}", plan.name));
        }
        if (size as usize) < plan.workspace() || workspace.is_null() {
            let need = plan.workspace();
            return refuse(
                acl::code::NN_INVALID,
                format!("EZ1001: {name} needs {need} bytes of workspace, has {size}"),
            );
        }
        engine.enqueue(id, plan.task(workspace as usize)).or_else(|_| refuse(107017, "EE1001: the stream is gone"))
    })
}

/// The tensor of a handle.
pub fn tensor(t: *const acl::aclTensor) -> Answer<Arc<Tensor>> {
    match world().get(t as usize) {
        Ok(Object::Tensor(t)) => Ok(t),
        _ => refuse(acl::code::NN_NULLPTR, format!("EZ1001: {t:p} is no tensor, or was destroyed")),
    }
}

/// The value of a scalar.
pub fn scalar(s: *const acl::aclScalar) -> Answer<f64> {
    match world().get(s as usize) {
        Ok(Object::Scalar(v)) => Ok(v),
        _ => refuse(acl::code::NN_NULLPTR, format!("EZ1001: {s:p} is no scalar, or was destroyed")),
    }
}

/// The values of an array.
pub fn ints(a: *const acl::aclIntArray) -> Answer<Arc<[i64]>> {
    match world().get(a as usize) {
        Ok(Object::IntArray(v)) => Ok(v),
        _ => refuse(acl::code::NN_NULLPTR, format!("EZ1001: {a:p} is no int array, or was destroyed")),
    }
}

/// The values of an array.
pub fn bools(a: *const acl::aclBoolArray) -> Answer<Arc<[bool]>> {
    match world().get(a as usize) {
        Ok(Object::BoolArray(v)) => Ok(v),
        _ => refuse(acl::code::NN_NULLPTR, format!("EZ1001: {a:p} is no bool array, or was destroyed")),
    }
}
