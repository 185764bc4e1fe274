//! The JSON-RPC of a Substrate node, as far as its official clients use it. One file for each family of methods; the
//! macros accept parameters by position and by name.

mod author;
mod blocks;
mod chain;
mod dev;
mod error;
mod follow;
mod state;
mod system;

use crate::node::Node;
use jsonrpsee::RpcModule;
use jsonrpsee::core::RegisterMethodError;

/// The module with all methods.
///
/// # Errors
/// When two methods have one name.
pub fn module(node: &Node) -> Result<RpcModule<()>, RegisterMethodError> {
    use author::AuthorServer as _;
    use chain::ChainServer as _;
    use dev::DevServer as _;
    use state::StateServer as _;
    use system::SystemServer as _;

    let mut module = RpcModule::new(());
    module.merge(chain::Rpc(node.clone()).into_rpc())?;
    module.merge(state::Rpc::new(node.clone()).into_rpc())?;
    module.merge(author::Rpc(node.clone()).into_rpc())?;
    module.merge(system::Rpc(node.clone()).into_rpc())?;
    module.merge(dev::Rpc(node.clone()).into_rpc())?;

    let mut names: Vec<&'static str> = module.method_names().chain(["rpc_methods"]).collect();
    names.sort_unstable();
    module.register_method(
        "rpc_methods",
        move |_, _, _| serde_json::json!({ "methods": names }),
    )?;
    Ok(module)
}
