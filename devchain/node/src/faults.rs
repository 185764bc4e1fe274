//! Faults on purpose: methods that answer late, wrongly or not at all, a head that stands still, connections that
//! break.

use jsonrpsee::core::middleware::{Batch, Notification, Request, RpcServiceT};
use jsonrpsee::server::MethodResponse;
use jsonrpsee::types::{ErrorObjectOwned, ResponsePayload};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The fault of the calls of a method.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fault {
    /// The answer comes this many milliseconds later.
    pub delay_ms: u64,
    /// The answer is this error.
    pub error: Option<ErrorObjectOwned>,
    /// The answer is this, whatever was asked.
    pub result: Option<Value>,
    /// The number of calls that meet the fault; all without it.
    pub times: Option<u32>,
}

/// All that goes wrong on purpose. `*` stands for all methods but those that only this chain has.
#[derive(Default, Debug)]
pub struct Faults {
    methods: Mutex<HashMap<String, Fault>>,
    head_stalled: AtomicBool,
    gate: Mutex<Gate>,
}

/// Connections, each with what breaks it.
#[derive(Default, Debug)]
struct Gate {
    open: HashMap<u32, oneshot::Sender<()>>,
    refuse_until: Option<Instant>,
}

fn whole<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    /// Sets what happens to the calls of a method; nothing without a fault.
    pub fn set(&self, method: String, fault: Option<Fault>) {
        let mut methods = whole(&self.methods);
        match fault {
            Some(fault) => drop(methods.insert(method, fault)),
            None => drop(methods.remove(&method)),
        }
    }

    /// All is well again.
    pub fn clear(&self) {
        whole(&self.methods).clear();
        self.head_stalled.store(false, Ordering::Relaxed);
        whole(&self.gate).refuse_until = None;
    }

    /// Whether no block is sealed by time.
    pub fn head_stalled(&self) -> bool {
        self.head_stalled.load(Ordering::Relaxed)
    }

    /// Stops or resumes sealing by time.
    pub fn stall_head(&self, stalled: bool) {
        self.head_stalled.store(stalled, Ordering::Relaxed);
    }

    /// Breaks all connections but one, and refuses new ones for a while. Returns how many it broke.
    pub fn drop_connections(&self, but: Option<u32>, refuse: Duration) -> usize {
        let mut gate = whole(&self.gate);
        gate.refuse_until = Instant::now().checked_add(refuse);
        let spared = but.and_then(|id| gate.open.remove_entry(&id));
        let broken = std::mem::take(&mut gate.open);
        gate.open.extend(spared);
        // One that ends at this moment needs no breaking.
        broken.into_values().filter_map(|cut| cut.send(()).ok()).count()
    }

    /// A new connection: the receiver of the order to break it, or nothing where it is refused.
    pub fn connected(&self, id: u32) -> Option<oneshot::Receiver<()>> {
        let mut gate = whole(&self.gate);
        if gate.refuse_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let (cut, broken) = oneshot::channel();
        gate.open.insert(id, cut);
        Some(broken)
    }

    /// A connection has ended.
    pub fn disconnected(&self, id: u32) {
        whole(&self.gate).open.remove(&id);
    }

    /// The fault that a call meets now; it counts.
    fn meet(&self, method: &str) -> Option<Fault> {
        let mut methods = whole(&self.methods);
        // The client that set a fault must be able to take it back.
        let name = if methods.contains_key(method) {
            method
        } else if method.starts_with("dev_") {
            return None;
        } else {
            "*"
        };
        let fault = methods.get_mut(name)?;
        let met = fault.clone();
        if let Some(times) = &mut fault.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                methods.remove(name);
            }
        }
        Some(met)
    }
}

/// Answers calls with the faults that are set.
#[derive(Clone)]
pub struct Faulty<S> {
    /// The service that answers them otherwise.
    pub service: S,
    /// Where the faults are.
    pub node: crate::node::Node,
    /// The largest answer in bytes.
    pub most: usize,
}

impl<S> RpcServiceT for Faulty<S>
where
    S: RpcServiceT<MethodResponse = MethodResponse> + Clone + Send + Sync + 'static,
{
    type MethodResponse = MethodResponse;
    type NotificationResponse = S::NotificationResponse;
    type BatchResponse = S::BatchResponse;

    fn call<'a>(&self, request: Request<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let fault = self.node.faults().meet(request.method_name());
        let (service, most) = (self.service.clone(), self.most);
        async move {
            let Some(fault) = fault else {
                return service.call(request).await;
            };
            tokio::time::sleep(Duration::from_millis(fault.delay_ms)).await;
            if let Some(error) = fault.error {
                MethodResponse::error(request.id.into_owned(), error)
            } else if let Some(result) = fault.result {
                MethodResponse::response(
                    request.id.into_owned(),
                    ResponsePayload::success(result).into(),
                    most,
                )
            } else {
                service.call(request).await
            }
        }
    }

    fn batch<'a>(&self, batch: Batch<'a>) -> impl Future<Output = Self::BatchResponse> + Send + 'a {
        self.service.batch(batch)
    }

    fn notification<'a>(
        &self,
        notification: Notification<'a>,
    ) -> impl Future<Output = Self::NotificationResponse> + Send + 'a {
        self.service.notification(notification)
    }
}
