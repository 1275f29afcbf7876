//! The algorithms that cuBLASLt chose for matrix products, on disk next to the compiled kernels: every process runs a
//! product with the same algorithm.
//!
//! A choice is a function of the product (operation, sizes, layouts, dtypes, alignments, limits), the GPU and the
//! version of the library. NVIDIA allows storing and restoring the descriptor of an algorithm with one version of the
//! library. Even so, the library checks a restored one before it is used.

use crate::device::cuda::cache::Cache;
use crate::device::cuda::context::CudaDevice;

/// The kind of these entries in the cache.
const KIND: &str = "algorithm";
/// Words of the library's descriptor of an algorithm. After them comes its workspace size in bytes.
const WORDS: usize = 8;
const ENTRY: usize = (WORDS + 1) * size_of::<u64>();

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The library's description of it.
    pub(super) algorithm: [u64; WORDS],
    /// Workspace bytes that it needs.
    pub(super) workspace: usize,
}

impl Choice {
    fn to_bytes(self) -> Vec<u8> {
        let words = self.algorithm.into_iter().chain([self.workspace as u64]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Choice> {
        let bytes: &[u8; ENTRY] = bytes.try_into().ok()?;
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut algorithm = [0; WORDS];
        algorithm.iter_mut().zip(&mut words).for_each(|(to, word)| *to = word);
        Some(Choice { algorithm, workspace: words.next()?.try_into().ok()? })
    }
}

/// The choices for one GPU and one version of the library.
pub(super) struct Choices<'a> {
    cache: Option<&'a Cache>,
    device: String,
    version: String,
}

impl<'a> Choices<'a> {
    pub(super) fn new(cache: Option<&'a Cache>, device: &CudaDevice, version: usize) -> Choices<'a> {
        let (major, minor) = device.compute_capability;
        // A part of a GPU has the same name as the whole, but another number of multiprocessors.
        let device = format!("{} {major}.{minor} {}", device.name, device.multiprocessors);
        Choices { cache, device, version: version.to_string() }
    }

    /// The algorithm for a product; `product` must describe it completely. It is the stored one if it is `valid`,
    /// otherwise the one that `ask` returns, which is then stored.
    pub(super) fn choose<E>(
        &self,
        product: &str,
        valid: impl FnOnce(&Choice) -> bool,
        ask: impl FnOnce() -> Result<Choice, E>,
    ) -> Result<Choice, E> {
        let key = [product.as_bytes(), self.device.as_bytes(), self.version.as_bytes()];
        let kept = self.cache.and_then(|cache| cache.get(KIND, &key));
        if let Some(choice) = kept.and_then(|bytes| Choice::from_bytes(&bytes)).filter(valid) {
            return Ok(choice);
        }
        let choice = ask()?;
        if let Some(cache) = self.cache {
            cache.put(KIND, &key, &choice.to_bytes());
        }
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    const FIRST: Choice = Choice { algorithm: [1, u64::MAX, 3, 4, 5, 6, 7, 1 << 40], workspace: 33 << 20 };
    const SECOND: Choice = Choice { algorithm: [9; WORDS], workspace: 0 };

    /// A separate folder for each test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("refrain-choices-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Folder(folder)
        }

        fn cache(&self) -> Cache {
            Cache::at(self.0.clone(), 1 << 20).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn gpu(name: &str, multiprocessors: usize) -> CudaDevice {
        CudaDevice {
            ordinal: 0,
            name: name.to_string(),
            compute_capability: (9, 0),
            memory: 1 << 30,
            multiprocessors,
            integrated: false,
            unified_addressing: true,
            pageable_memory_access: false,
            memory_pools: true,
        }
    }

    /// The choice if the library would answer `answer`, and whether it was asked.
    fn choose(choices: &Choices<'_>, product: &str, answer: Choice) -> (Choice, bool) {
        let mut asked = false;
        let choice = choices.choose(
            product,
            |_| true,
            || {
                asked = true;
                Ok::<_, Infallible>(answer)
            },
        );
        (choice.unwrap_or_else(|e| match e {}), asked)
    }

    #[test]
    fn a_choice_is_kept_for_its_product_device_and_version_alone() {
        let folder = Folder::new("keys");
        let cache = folder.cache();
        let of =
            |name, multiprocessors, version| Choices::new(Some(&cache), &gpu(name, multiprocessors), version);
        assert_eq!(choose(&of("A", 132, 130_400), "a b", FIRST), (FIRST, true));
        assert_eq!(choose(&of("A", 132, 130_400), "a b", SECOND), (FIRST, false));
        for (choices, product) in [
            (of("A", 132, 130_400), "a c"),
            (of("A", 132, 130_401), "a b"),
            (of("B", 132, 130_400), "a b"),
            (of("A", 66, 130_400), "a b"),
        ] {
            assert_eq!(choose(&choices, product, SECOND), (SECOND, true));
        }
        assert_eq!(choose(&of("A", 132, 130_400), "a b", SECOND), (FIRST, false), "others left it alone");
    }

    #[test]
    fn a_broken_entry_is_made_anew() {
        let folder = Folder::new("broken");
        let cache = folder.cache();
        let choices = Choices::new(Some(&cache), &gpu("A", 132), 1);
        let path = cache.path(KIND, &[b"p", choices.device.as_bytes(), choices.version.as_bytes()]);
        for damage in [0, 8, 44, usize::MAX] {
            assert_eq!(choose(&choices, "p", FIRST).0, FIRST);
            let mut bytes = fs::read(&path).unwrap();
            match bytes.get_mut(damage) {
                Some(byte) => *byte ^= 1,
                None => bytes.truncate(60),
            }
            fs::write(&path, bytes).unwrap();
            assert_eq!(choose(&choices, "p", FIRST), (FIRST, true), "damaged at {damage}");
            assert_eq!(choose(&choices, "p", SECOND), (FIRST, false));
        }
        // Complete, but of another length.
        for body in [&[][..], &[1; ENTRY - 1], &[1; ENTRY + 1]] {
            cache.put(KIND, &[b"p", choices.device.as_bytes(), choices.version.as_bytes()], body);
            assert_eq!(choose(&choices, "p", FIRST), (FIRST, true));
        }
    }

    #[test]
    fn a_choice_that_the_library_refuses_is_replaced() {
        let folder = Folder::new("refused");
        let cache = folder.cache();
        let choices = Choices::new(Some(&cache), &gpu("A", 132), 1);
        choose(&choices, "p", FIRST);
        let refuse = |choice: &Choice| *choice != FIRST;
        assert_eq!(choices.choose("p", refuse, || Ok::<_, Infallible>(SECOND)), Ok(SECOND));
        assert_eq!(choose(&choices, "p", FIRST), (SECOND, false));
        // Without an answer, nothing is stored.
        assert_eq!(choices.choose("q", refuse, || Err("refused")), Err("refused"));
        assert_eq!(choose(&choices, "q", FIRST), (FIRST, true));
    }

    #[test]
    fn writers_side_by_side_leave_whole_entries() {
        let folder = Folder::new("side-by-side");
        let caches: Vec<Cache> = (0..8).map(|_| folder.cache()).collect();
        std::thread::scope(|scope| {
            for (thread, cache) in caches.into_iter().enumerate() {
                scope.spawn(move || {
                    let choices = Choices::new(Some(&cache), &gpu("A", 132), 1);
                    for round in 0..200 {
                        let answer = if (round + thread) % 2 == 0 { FIRST } else { SECOND };
                        let ask = || Ok::<_, Infallible>(answer);
                        // Each refuses the other's choice from time to time, and overwrites it.
                        let chosen = choices.choose("p", |kept| round % 3 > 0 || *kept == answer, ask);
                        assert!([Ok(FIRST), Ok(SECOND)].contains(&chosen));
                    }
                });
            }
        });
        let left: Vec<_> = fs::read_dir(&folder.0).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 1, "temporary files are left: {left:?}");
        let cache = folder.cache();
        assert!(!choose(&Choices::new(Some(&cache), &gpu("A", 132), 1), "p", FIRST).1);
    }

    #[test]
    fn without_a_folder_the_library_is_asked() {
        let choices = Choices::new(None, &gpu("A", 132), 1);
        assert_eq!(choose(&choices, "p", FIRST), (FIRST, true));
        assert_eq!(choose(&choices, "p", SECOND), (SECOND, true));
    }
}
