//! What layers call: Ctx, Micro, ParamTable, ParamStore, and the Layer contract.
