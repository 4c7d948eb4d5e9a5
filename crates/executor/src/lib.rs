//! Runs a schedule's steps over the chunks of a stage.
