//! Pipeline schedules as data. Pure functions over the mesh.
