//! Every scenario twice: against its recording in every test run, against a real cluster in `cargo xtask fleets`.

macro_rules! scenarios {
    ($group:ident of $file:ident: $($name:ident),* $(,)?) => {
        mod $group {
            mod recorded {
                use crate::{$file, target::Target};
                $(
                    #[tokio::test]
                    async fn $name() {
                        $file::$name(Target::recorded(stringify!($name))).await;
                    }
                )*
            }

            mod real {
                use crate::{$file, target::Target};
                $(
                    #[tokio::test]
                    #[ignore = "needs a Kubernetes cluster; `cargo xtask fleets` starts one and runs this"]
                    async fn $name() {
                        $file::$name(Target::real(stringify!($name)).await).await;
                    }
                )*
            }
        }
    };
}

scenarios! {
    control_plane of scenarios:
    create_and_delete,
    missing_secret,
    without_rights,
    bad_token,
    quota,
    invalid_pod,
    another_miner,
    excluded_hosts,
}

scenarios! {
    nodes of nodes:
    as_many_run_as_there_are_gpus,
    excluded_hosts_get_no_executor,
    ends_have_their_reasons,
}

scenarios! {
    lost_node of nodes:
    a_lost_node_takes_its_places,
}
