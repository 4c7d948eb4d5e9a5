//! Flag tables, the argparse-exact parser, validation: from argv to one immutable Config.
