//! `muster-llm`: serves one model over OpenAI's HTTP.

use clap::{Parser, Subcommand};
use muster_image_llm::program::{self, ModelArguments, ServeArguments};

/// The reference engine for language models of the Llama architecture.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model.
    Serve(ServeArguments),
    /// Print a model's id.
    Id(ModelArguments),
}

fn main() -> anyhow::Result<()> {
    program::write_logs();
    match Cli::parse().command {
        Command::Serve(arguments) => program::serve_model(&arguments),
        Command::Id(model) => print_id(&model),
    }
}

#[expect(clippy::print_stdout, reason = "it is what was asked for")]
fn print_id(model: &ModelArguments) -> anyhow::Result<()> {
    println!("{}", program::read_model(model)?.id);
    Ok(())
}
