//! Tests whose sections share one subnet: what one of them runs and reads is in no other one's way.

use muster_tests::{RunningSubnet, section};

use super::{
    data, differential, failures, files, foreign, logs, operators, organic, output, private_images,
    program_start, python_client, streaming, top, traces, user_pages, users,
};

#[test]
fn users_run_watch_cancel_and_fetch_jobs() {
    let mut subnet = RunningSubnet::start().unwrap();
    // It counts what the account has stored, so nothing comes before it.
    section("an account without room gets the beginning and is told", || {
        output::an_account_without_room_gets_the_beginning_and_is_told_how_much_there_is(&subnet);
    });
    section("a job takes files of this machine and brings files back", || {
        users::a_job_takes_files_of_this_machine_and_brings_files_back(&subnet);
    });
    section("a folder goes there and back with modes, links and names", || {
        users::a_folder_goes_there_and_back_with_modes_links_and_names(&subnet);
    });
    section("a detached job is listed, followed and fetched", || {
        users::a_detached_job_is_listed_followed_and_fetched(&subnet);
    });
    section("Ctrl-C cancels the job and waits for its end", || {
        users::ctrl_c_cancels_the_job_and_waits_for_its_end(&subnet);
    });
    section("a job's output is seen while it runs", || {
        users::a_jobs_output_is_seen_while_it_runs(&subnet);
    });
    section("the output of a program comes whole into a file", || {
        users::the_output_of_a_program_comes_whole_into_a_file(&subnet);
    });
    section(
        "an API key opens what the hotkey owns until it is revoked",
        || {
            users::an_api_key_opens_what_the_hotkey_owns_until_it_is_revoked(&subnet);
        },
    );
    section("a second subnet in the folder leaves the first as it is", || {
        failures::a_second_subnet_in_the_folder_leaves_the_first_as_it_is(&subnet);
    });
    section("a job runs an image from an archive of its user", || {
        private_images::a_job_runs_an_image_from_an_archive_of_its_user(&subnet);
    });
    section(
        "a kill of the facilitator in the middle of an upload loses nothing acknowledged",
        || {
            files::killing_the_facilitator_in_the_middle_of_an_upload_loses_nothing_acknowledged(&subnet);
        },
    );
    section("roles do not outlive a supervisor that is killed", || {
        failures::roles_do_not_outlive_a_supervisor_that_is_killed(&mut subnet);
    });
}

#[test]
fn jobs_and_their_failures_are_seen_in_terminals_pages_logs_and_traces() {
    let mut subnet = RunningSubnet::start().unwrap();
    // The screen shows the newest jobs, so nobody else's come before it.
    section(
        "`muster top` shows jobs, validator and miner, and leaves the terminal as it was",
        || {
            top::top_shows_jobs_validator_and_miner_and_leaves_the_terminal_as_it_was(&subnet);
        },
    );
    section("a job that fails names the stage and the party", || {
        failures::a_job_that_fails_names_the_stage_and_the_party(&subnet);
    });
    section("operators' pages want the token and change nothing", || {
        operators::operators_pages_want_the_token_and_change_nothing(&subnet);
    });
    section("a coldkey is funded on the local chain and on no other", || {
        operators::a_coldkey_is_funded_on_the_local_chain_and_on_no_other(&subnet);
    });
    section("a route is explained by the references of a job", || {
        operators::a_route_is_explained_by_the_references_of_a_job(&subnet);
    });
    section("two jobs run at once, each with its own input and output", || {
        organic::two_jobs_run_at_once_each_with_its_own_input_and_output(&subnet);
    });
    section(
        "fifty jobs on two executors all complete and start in the order of their arrival",
        || {
            organic::fifty_jobs_on_two_executors_all_complete_and_start_in_the_order_of_their_arrival(
                &subnet,
            );
        },
    );
    section("the end of a job is one line at each role, with its ids", || {
        logs::the_end_of_a_job_is_one_line_at_each_role_with_its_ids(&subnet);
    });
    section("a job's way is shown without a collector", || {
        traces::a_jobs_way_is_shown_without_a_collector(&subnet);
    });
    section("a job prints the bytes that docker prints", || {
        differential::a_job_prints_the_bytes_that_docker_prints(&subnet);
    });
    section("a program starts as its user says", || {
        program_start::a_program_starts_as_its_user_says(&subnet);
    });
    section(
        "a file describes the start, and the command line sets its values",
        || {
            program_start::a_file_describes_the_start_and_the_command_line_sets_its_values(&subnet);
        },
    );
    section("the output since a time is printed", || {
        program_start::the_output_since_a_time_is_printed(&subnet);
    });
    section("a job delivers the folder that docker leaves", || {
        differential::a_job_delivers_the_folder_that_docker_leaves(&subnet);
    });
    section("a program outlives its killed client as in docker", || {
        differential::a_program_outlives_its_killed_client_as_in_docker(&subnet);
    });
    section("a job's status never splits a line of its program", || {
        top::a_jobs_lines_are_drawn_as_its_program_draws_them(&subnet);
    });
    section("an operator stops it with one signal", || {
        failures::an_operator_stops_it_with_one_signal(&mut subnet);
    });
}

#[test]
fn a_model_is_asked_in_the_terminal_and_by_curl() {
    let mut subnet = RunningSubnet::start().unwrap();
    // One of the two executors is at work from here on.
    let job = section("a long job runs beside the chats", || {
        users::a_long_job_runs(&subnet)
    });
    section(
        "a chat waits for a machine, is told its place, and gets its answer",
        || {
            streaming::a_chat_waits_for_a_machine_is_told_its_place_and_gets_its_answer(&subnet);
        },
    );
    section(
        "a chat shows what each answer is worth, and a changed one is worth nothing",
        || {
            streaming::a_chat_in_the_terminal_shows_what_each_answer_is_worth_and_a_changed_one_is_worth_nothing(
            &subnet,
        );
        },
    );
    section(
        "curl sees the words one by one and the proof last, whichever HTTP it speaks",
        || {
            streaming::curl_sees_the_words_one_by_one_and_the_proof_last_whichever_http_it_speaks(&subnet);
        },
    );
    section("a job gets the executor of a session that nobody uses", || {
        streaming::a_job_gets_the_executor_of_a_session_that_nobody_uses(&subnet);
    });
    section("the long job has run all the time", || {
        users::the_job_still_runs(&subnet, &job);
    });
    section("a second signal ends a subnet at once", || {
        failures::a_second_signal_ends_a_subnet_at_once(&mut subnet);
    });
}

#[test]
fn every_block_of_the_users_pages_runs() {
    let subnet = RunningSubnet::start().unwrap();
    section("every block of the users' pages runs", || {
        user_pages::every_block_of_the_users_pages_runs(&subnet);
    });
}

#[test]
fn programs_that_nobody_here_wrote_chat_stream_run_jobs_and_move_data() {
    let subnet = RunningSubnet::start().unwrap();
    section("OpenAI's own client does everything it can", || {
        streaming::openais_own_client_does_everything_it_can(&subnet);
    });
    section(
        "the Python SDK runs a job, and the official client reads its weight",
        || {
            foreign::the_python_sdk_runs_a_job_and_the_official_client_reads_its_weight(&subnet);
        },
    );
    section(
        "the Python SDK streams from a job that it reaches directly",
        || {
            foreign::the_python_sdk_streams_from_a_job_that_it_reaches_directly(&subnet);
        },
    );
    section(
        "our Python package runs jobs, moves files and proves answers",
        || {
            python_client::the_python_package_runs_jobs_moves_files_and_proves_answers(&subnet);
        },
    );
    // It permits the executors another server, so it comes last.
    section(
        "inputs come from everywhere, and outputs go where the user signed",
        || {
            data::inputs_come_from_everywhere_and_outputs_go_where_the_user_signed(&subnet);
        },
    );
}
