//! What requests say of who sends them.
//!
//! The SDK has four headers for that, two with its own version and the system's, one that numbers the call and one that numbers
//! the attempt. They are made anew and signed at each request, and no server needs them. Here it is one, and it is ready.

use aws_runtime::invocation_id::InvocationIdInterceptor;
use aws_runtime::recursion_detection::RecursionDetectionInterceptor;
use aws_runtime::request_info::RequestInfoInterceptor;
use aws_runtime::user_agent::UserAgentInterceptor;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::interceptors::{
    BeforeSerializationInterceptorContextRef, BeforeTransmitInterceptorContextMut,
};
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_smithy_runtime_api::client::interceptors::disable_interceptor;

const USER_AGENT: &str = "user-agent";
const WHY: &str = "one header says it";

/// The same client, which says it this way.
pub(super) fn introduced(client: &Client) -> Client {
    let sdk = aws_sdk_sqs::meta::PKG_VERSION;
    let mut text = format!("postbox/{} aws-sdk-sqs/{sdk} lang/rust", env!("CARGO_PKG_VERSION"));
    if let Some(name) = client.config().app_name() {
        text = format!("{text} app/{name}");
    }
    // Where a program runs does not change, and to look for it at each request costs two looks at the environment.
    let is_lambda = std::env::var_os("AWS_LAMBDA_FUNCTION_NAME").is_some();
    Client::from_conf(client.config().to_builder().interceptor(Agent { text, is_lambda }).build())
}

#[derive(Debug)]
struct Agent {
    text: String,
    /// Whether the SDK has to say in which call of a function a request is made, so that AWS sees functions that call themselves.
    is_lambda: bool,
}

impl Intercept for Agent {
    fn name(&self) -> &'static str {
        "Agent"
    }

    fn read_before_execution(
        &self,
        _: &BeforeSerializationInterceptorContextRef<'_>,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let state = config.interceptor_state();
        state.store_put(disable_interceptor::<InvocationIdInterceptor>(WHY));
        state.store_put(disable_interceptor::<RequestInfoInterceptor>(WHY));
        state.store_put(disable_interceptor::<UserAgentInterceptor>(WHY));
        if !self.is_lambda {
            state.store_put(disable_interceptor::<RecursionDetectionInterceptor>("this is no function of Lambda"));
        }
        Ok(())
    }

    fn modify_before_transmit(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        if !headers.contains_key(USER_AGENT) {
            headers.insert(USER_AGENT, self.text.clone());
        }
        Ok(())
    }
}
