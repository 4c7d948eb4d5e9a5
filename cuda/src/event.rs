//! Events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ferrotron_cuda_sys::{self as sys, code};
use ferrotron_device::Result;
use ferrotron_device::stream::EventImpl;

use crate::shared::{Omit, Shared};
use crate::stream::Core;

/// A mark in a stream.
#[derive(Clone)]
pub struct CudaEvent(Arc<Mark>);

/// What a [`CudaEvent`] is.
pub struct Mark {
    shared: Arc<Shared>,
    handle: usize,
    /// It stands in work that is collected: nothing of it has run, and the driver answers no question about it.
    collected: AtomicBool,
    /// The mark before the graph in which it stood.
    begun: OnceLock<CudaEvent>,
}

impl CudaEvent {
    /// Owns an event of the driver's.
    pub fn new(shared: Arc<Shared>, handle: usize, collected: bool) -> CudaEvent {
        CudaEvent(Arc::new(Mark { shared, handle, collected: collected.into(), begun: OnceLock::new() }))
    }

    pub fn handle(&self) -> sys::CUevent {
        self.0.handle as sys::CUevent
    }

    /// True while it stands in work that is collected.
    pub fn is_collected(&self) -> bool {
        self.0.collected.load(Ordering::Acquire)
    }

    pub fn downgrade(&self) -> Weak<Mark> {
        Arc::downgrade(&self.0)
    }
}

impl Mark {
    /// The graph in which it stands was launched on `home`, behind `begun`. Outside it is good only when set again.
    pub fn launched(&self, home: &Core, begun: &CudaEvent) -> Result<()> {
        if !self.shared.omits(Omit::GraphMarks) {
            // SAFETY: both live.
            let status = unsafe { (self.shared.cuda.driver.cuEventRecord)(self.handle as sys::CUevent, home.handle()) };
            home.check("cuEventRecord", status)?;
        }
        // it stands in one graph only
        let _ = self.begun.set(begun.clone());
        self.collected.store(false, Ordering::Release);
        Ok(())
    }

    /// What it stands in will never run: nobody should wait for it.
    pub fn given_up(&self) {
        self.collected.store(false, Ordering::Release);
    }
}

impl EventImpl for CudaEvent {
    fn is_done(&self) -> bool {
        // an error here is one of the device, which the stream reports; nobody should wait for it any longer
        !self.is_collected()
            && (self.0.shared.enter().is_err()
                // SAFETY: the event lives.
                || unsafe { (self.0.shared.cuda.driver.cuEventQuery)(self.handle()) } != code::NOT_READY)
    }

    fn has_begun(&self) -> bool {
        self.0.begun.get().map_or_else(|| self.is_done(), |begun| begun.is_done())
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = self.shared.enter();
        // SAFETY: the event is ours, and this is its last use; waits that are queued have taken what they need.
        unsafe { (self.shared.cuda.driver.cuEventDestroy_v2)(self.handle as sys::CUevent) };
    }
}
