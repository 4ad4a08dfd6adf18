//! Resources of handlers, by type.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use crate::runtime::lock;

type Shared = Arc<dyn Any + Send + Sync>;
type Provider = Arc<dyn Fn(&Resources) -> Shared + Send + Sync>;

/// The clients, pools and settings that handlers use, one of each type.
///
/// ```
/// use postbox::{CompositeResolver, MailboxResolver};
/// use postbox::worker::Resources;
/// use std::sync::Arc;
///
/// struct Settings { region: &'static str }
/// struct Client { region: &'static str }
///
/// let resources = Resources::new()
///     .with(Settings { region: "eu" })
///     // Made once, at the first use.
///     .provide(|resources| Client { region: resources.get::<Settings>().unwrap().region })
///     .with::<Arc<dyn MailboxResolver>>(Arc::new(CompositeResolver::new()));
///
/// assert_eq!(resources.get::<Client>().unwrap().region, "eu");
/// assert!(resources.get::<Arc<dyn MailboxResolver>>().is_some());
/// assert!(resources.get::<String>().is_none());
/// ```
#[derive(Clone, Default)]
pub struct Resources {
    bindings: Arc<Mutex<HashMap<TypeId, Binding>>>,
}

#[derive(Clone)]
struct Binding {
    name: &'static str,
    made: Arc<OnceLock<Shared>>,
    provider: Provider,
}

impl Resources {
    /// No resources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a resource. It replaces the one of its type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(self, resource: T) -> Self {
        let resource: Shared = Arc::new(resource);
        self.bind::<T>(Arc::new(move |_| Arc::clone(&resource)));
        self
    }

    /// Adds a resource that `provider` makes once, at the first use. A provider may use other resources, but not its own.
    #[must_use]
    pub fn provide<T: Send + Sync + 'static>(self, provider: impl Fn(&Resources) -> T + Send + Sync + 'static) -> Self {
        self.bind::<T>(Arc::new(move |resources| Arc::new(provider(resources))));
        self
    }

    fn bind<T: 'static>(&self, provider: Provider) {
        let binding = Binding { name: type_name::<T>(), made: Arc::default(), provider };
        let old = lock(&self.bindings).insert(TypeId::of::<T>(), binding);
        drop(old);
    }

    /// The resource of this type, if there is one.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let binding = lock(&self.bindings).get(&TypeId::of::<T>()).cloned()?;
        let shared = binding.made.get_or_init(|| (binding.provider)(self));
        Arc::clone(shared).downcast().ok()
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bindings = lock(&self.bindings);
        f.debug_set().entries(bindings.values().map(|binding| binding.name)).finish()
    }
}
