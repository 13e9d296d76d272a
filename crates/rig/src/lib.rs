//! Network namespaces, interfaces and users for the demonstration, benchmarks and tests.
