//! Workloads, rivals, reports.
