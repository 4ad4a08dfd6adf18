//! A queue as SQS describes it: its address, its attributes, its policy and its tags.
//!
//! All of it is values and functions. The store keeps the values and decides which queues exist.

mod address;
mod attributes;
mod listing;
mod move_task;
mod permissions;
mod redrive;
mod tags;

pub(crate) use address::is_region;
pub use address::{QueueAddress, QueueUrl, Scope, check_name, region_of_host};
pub(crate) use attributes::is_queue_attribute;
pub use attributes::{DeduplicationScope, FifoThroughputLimit, QueueAttributes, QueueFigures};
pub use listing::{Page, list};
pub use move_task::{TaskHandle, parse_task_arn};
pub use permissions::{add_permission, remove_permission};
pub use redrive::{RedriveAllowPolicy, RedrivePolicy};
pub use tags::{check_new_tags, check_tag_keys, check_tag_request, check_untag_request};
