//! Weights of other programs: safetensors files, one or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use refrain::{DType, Device, Tensor};
use serde::Deserialize;

use super::file::FileTensor;
use super::load::{Checkpoint, list};
use super::pending::{Part, Pending};
use super::{Stored, TENSORS, bytes, model_tensors, write_tensors};
use crate::error::{Error, Result};
use crate::parameters::{Entry, Parameters, RESERVED};

/// The index of weights that are spread over several files.
pub const INDEX: &str = "model.safetensors.index.json";

/// The tensors of one or several safetensors files, whoever wrote them.
///
/// ```
/// # use refrain::{DType, Device, Generator, Tensor};
/// # use refrain_nn::{Linear, ParameterBuilder, Weights};
/// # let device = Device::cpu();
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("weights.safetensors");
/// # let builder = ParameterBuilder::new(&device, DType::F32);
/// # Linear::new(&builder.scope("head"), 3, 1)?;
/// # builder.build(&Generator::new(&device, 0)?)?.save_safetensors(&path)?;
/// let weights = Weights::open(&path)?;
/// assert_eq!(weights.names().collect::<Vec<_>>(), ["head.bias", "head.weight"]);
/// let weight = weights.tensor("head.weight", &device)?;
/// assert_eq!((weight.dtype(), weight.dims()), (DType::F32, &[1, 3][..]));
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct Weights {
    path: PathBuf,
    files: Vec<Checkpoint>,
    /// Which file a tensor is in.
    places: BTreeMap<String, usize>,
}

/// The part of an index that says where tensors are.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens a safetensors file; or the index of several (`model.safetensors.index.json`); or a folder with one of these.
    /// Values stay in the files until they are asked for. The state of an optimiser in a checkpoint of refrain is left out.
    ///
    /// # Errors
    /// If a file is missing, is cut off, or was written by refrain and changed since, or if the index names a tensor that
    /// its file does not have.
    pub fn open(path: impl AsRef<Path>) -> Result<Weights> {
        let mut path = path.as_ref().to_owned();
        if path.is_dir() {
            let files = [TENSORS, INDEX].map(|name| path.join(name));
            let found = files.into_iter().find(|file| file.exists());
            path = found.ok_or_else(|| {
                Error::checkpoint(
                    &path,
                    format!("the folder has neither {TENSORS} nor {INDEX}; pass the file"),
                )
            })?;
        }
        match path.extension().is_some_and(|extension| extension == "json") {
            true => Weights::of_index(path),
            false => {
                let file = Checkpoint::open_file(&path)?;
                let own = file.is_of_refrain();
                let names = file.file().names();
                let names = names.into_iter().filter(|name| !(own && name.starts_with(RESERVED)));
                Ok(Weights { places: names.map(|name| (name, 0)).collect(), files: vec![file], path })
            }
        }
    }

    fn of_index(path: PathBuf) -> Result<Weights> {
        let refuse = |message: String| Error::checkpoint(&path, message);
        if path.metadata().is_ok_and(|it| !it.is_file()) {
            return Err(refuse("it is not a file; pass the index of the weights".to_owned()));
        }
        let text = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let index: Index = serde_json::from_slice(&text).map_err(|e| {
            refuse(format!(
                "not an index of safetensors files ({e}); it must map tensors to files in `weight_map`"
            ))
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
        // A name with a path could make this read any file of the machine.
        let is_plain = |name: &str| Path::new(name).file_name().is_some_and(|file| file == name);
        if let Some(name) = names.iter().find(|name| !is_plain(name)) {
            return Err(refuse(format!("it names the file `{name}`; the files must be beside the index")));
        }
        let files =
            names.iter().map(|name| Checkpoint::open_file(folder.join(name))).collect::<Result<Vec<_>>>()?;
        let numbers: BTreeMap<&str, usize> = names.iter().copied().zip(0..).collect();
        let mut places = BTreeMap::new();
        for (tensor, file) in &index.weight_map {
            let at = numbers[file.as_str()];
            if files[at].file().tensor(tensor).is_none() {
                return Err(refuse(format!(
                    "tensor `{tensor}` is not in {file}, where the index says it is; copy the files again"
                )));
            }
            places.insert(tensor.clone(), at);
        }
        Ok(Weights { files, places, path })
    }

    /// The names of the tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The sizes of a tensor's axes.
    ///
    /// # Errors
    /// If there is no tensor of this name.
    pub fn dims(&self, name: &str) -> Result<&[usize]> {
        Ok(self.stored(name)?.1.shape())
    }

    /// The dtype of a tensor.
    ///
    /// # Errors
    /// If there is no tensor of this name, or tensors do not have its dtype.
    pub fn dtype(&self, name: &str) -> Result<DType> {
        let (file, stored) = self.stored(name)?;
        bytes::from_format(stored.dtype()).ok_or_else(|| {
            file.error(format!(
                "tensor `{name}` is {:?}, a dtype that tensors do not have; convert it before you save the file",
                stored.dtype()
            ))
        })
    }

    fn stored(&self, name: &str) -> Result<(&Checkpoint, FileTensor<'_>)> {
        let found = self.places.get(name).map(|&at| &self.files[at]);
        found.and_then(|file| Some((file, file.file().tensor(name)?))).ok_or_else(|| {
            Error::checkpoint(
                &self.path,
                format!("there is no tensor `{name}`; `names()` lists those that there are"),
            )
        })
    }

    /// A tensor on a device, in the dtype of the file ([`Tensor::to_dtype`] converts). For every dtype that tensors have.
    ///
    /// # Errors
    /// If there is none of this name, or tensors do not have the dtype of the file, or the device has not enough memory.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        let (_, stored) = self.stored(name)?;
        let tensor = Tensor::zeros(stored.shape(), self.dtype(name)?, device)?;
        tensor.write_pieces(|first, piece| stored.read(first, piece))?;
        Ok(tensor)
    }

    /// Writes tensors under these names into one safetensors file that other programs can read. The file has the old
    /// content or the new one at any moment ([`super::write_atomic`]).
    ///
    /// ```
    /// # use refrain::{DType, Device, Tensor};
    /// # use refrain_nn::Weights;
    /// # let device = Device::cpu();
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("weights.safetensors");
    /// let bias = Tensor::from_slice(&[1.0f32, 2.0], [2], &device)?;
    /// Weights::write(&path, [("classifier.bias", &bias)])?;
    /// assert_eq!(Weights::open(&path)?.tensor("classifier.bias", &device)?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If two tensors have one name, a number is not finite, the file cannot be written, or a device cannot be read.
    pub fn write<'a>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    ) -> Result<()> {
        let path = path.as_ref();
        let mut all = BTreeMap::new();
        for (name, tensor) in tensors {
            if all.insert(name.to_owned(), Stored::of(tensor)?).is_some() {
                let message = format!("two tensors have the name `{name}`; give each its own");
                return Err(Error::checkpoint(path, message));
            }
        }
        write_plain(path, all)
    }

    /// A tensor of the files for a parameter or buffer of the model. `None` if there is none of this name.
    fn fitting(
        &self,
        name: &str,
        (own, tensor): (&str, &Tensor),
        convert: bool,
    ) -> Result<Option<FileTensor<'_>>> {
        if !self.places.contains_key(name) {
            return Ok(None);
        }
        let (file, stored) = self.stored(name)?;
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let found = format!("tensor `{name}` is {:?} {:?}", stored.dtype(), stored.shape());
        if stored.shape() != shape.dims() {
            return Err(file.error(format!(
                "{found}, but parameter `{own}` is {dtype} {shape}; build the model with the sizes of the file, or rename the tensor that fits"
            )));
        }
        let fix =
            match stored.dtype() == bytes::to_format(dtype) || convert && bytes::is_float(stored.dtype()) {
                true => return Ok(Some(stored)),
                false if convert => "only floats are converted",
                false => "set `LoadOptions::convert`, or build the model in the dtype of the file",
            };
        Err(file.error(format!("{found}, but parameter `{own}` is {dtype}; {fix}")))
    }
}

/// What [`Parameters::load_safetensors`] does where model and file differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whether it is an error if the file lacks a parameter, or has a tensor that the model lacks.
    pub strict: bool,
    /// Whether floats of another dtype are converted to that of the parameters. If not, another dtype is an error.
    pub convert: bool,
}

impl Default for LoadOptions {
    /// Strict, and nothing is converted.
    fn default() -> LoadOptions {
        LoadOptions { strict: true, convert: false }
    }
}

/// What [`Parameters::load_safetensors`] did not find. Both lists are empty if the load was strict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Parameters and buffers of the model that the file lacks. They keep their values.
    pub missing: Vec<String>,
    /// Tensors of the file that no parameter or buffer took.
    pub unused: Vec<String>,
}

impl Parameters {
    /// Loads the values of parameters and buffers from safetensors files of any program; `path` is as for
    /// [`Weights::open`]. `name_in_file` says under which name the file has a parameter.
    ///
    /// Nothing is changed if there is an error. The state of an optimiser is not loaded.
    ///
    /// ```
    /// # use refrain::{DType, Device, Generator};
    /// # use refrain_nn::{Linear, LoadOptions, ParameterBuilder};
    /// # let device = Device::cpu();
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("weights.safetensors");
    /// # let theirs = ParameterBuilder::new(&device, DType::BF16);
    /// # Linear::new(&theirs.scope("classifier"), 3, 1)?;
    /// # theirs.build(&Generator::new(&device, 0)?)?.save_safetensors(&path)?;
    /// let builder = ParameterBuilder::new(&device, DType::F32);
    /// Linear::new(&builder.scope("head"), 3, 1)?;
    /// let parameters = builder.build(&Generator::new(&device, 1)?)?;
    /// // The file has `classifier.weight` and `classifier.bias`, in bf16.
    /// let options = LoadOptions { convert: true, ..LoadOptions::default() };
    /// parameters.load_safetensors(&path, |name| name.replace("head.", "classifier."), options)?;
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a file is broken ([`Weights::open`]), a shape or dtype differs, a number is not finite, or, in a strict load, names
    /// differ. The message names the tensor and the parameter, and says what to do.
    pub fn load_safetensors(
        &self,
        path: impl AsRef<Path>,
        name_in_file: impl Fn(&str) -> String,
        options: LoadOptions,
    ) -> Result<Unmatched> {
        let weights = Weights::open(path)?;
        let mut unmatched = Unmatched::default();
        let (mut used, mut sought) = (BTreeSet::new(), Vec::new());
        let mut find = |own: &str, tensor: &Tensor| -> Result<Option<Part<'_>>> {
            let name = name_in_file(own);
            let Some(from) = weights.fitting(&name, (own, tensor), options.convert)? else {
                unmatched.missing.push(own.to_owned());
                sought.push(if name == own { format!("`{own}`") } else { format!("`{name}` (for `{own}`)") });
                return Ok(None);
            };
            used.insert(name.clone());
            Ok(Some(Part { name, from, first: 0 }))
        };
        let mut pending = Pending::default();
        let found = self.entries().iter().map(|entry| Ok((entry, find(&entry.name, &entry.tensor)?)));
        let found: Vec<(&Entry, Option<Part<'_>>)> = found.collect::<Result<_>>()?;
        // Parameters that are neighbours in the flat buffer are written together.
        let mut found = found.into_iter().peekable();
        while let Some((first, part)) = found.next() {
            let (Some(part), begin) = (part, first.segment.offset) else { continue };
            let (mut parts, mut end) = (vec![part], begin + first.segment.length);
            while let Some((entry, Some(part))) = found.next_if(|(_, part)| part.is_some()) {
                parts.push(Part { first: entry.segment.offset - begin, ..part });
                end = entry.segment.offset + entry.segment.length;
            }
            pending.add(self.values().narrow(0, begin, end - begin)?, parts);
        }
        for (own, tensor) in self.buffers() {
            if let Some(part) = find(own, tensor)? {
                pending.add(tensor.clone(), vec![part]);
            }
        }
        unmatched.unused = weights.names().filter(|name| !used.contains(*name)).map(String::from).collect();
        if options.strict && unmatched != Unmatched::default() {
            let mut faults = Vec::new();
            if !sought.is_empty() {
                faults.push(format!("the file lacks {}", list(sought.into_iter())));
            }
            if !unmatched.unused.is_empty() {
                let unused = unmatched.unused.iter().map(|name| format!("`{name}`"));
                faults.push(format!("the model lacks {}", list(unused)));
            }
            return Err(Error::checkpoint(
                &weights.path,
                format!(
                    "its names are not those of the model: {}; return the names of the file from `name_in_file`, or set `LoadOptions::strict` to false to load what there is",
                    faults.join("; ")
                ),
            ));
        }
        pending.write()?;
        Ok(unmatched)
    }

    /// Writes parameters and buffers under their names into one safetensors file that other programs can read. The file
    /// has the old content or the new one at any moment ([`super::write_atomic`]).
    ///
    /// To continue training later, write a checkpoint instead ([`super::save`]).
    ///
    /// # Errors
    /// If a number is not finite, the file cannot be written, or the device cannot be read.
    pub fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<()> {
        write_plain(path.as_ref(), model_tensors(self)?)
    }
}

/// Writes tensors without a state.
fn write_plain(path: &Path, tensors: BTreeMap<String, Stored>) -> Result<()> {
    // Programs of the PyTorch world look at this entry before they load a file.
    let texts = [("format".to_owned(), "pt".to_owned())].into();
    write_tensors(path, tensors, texts, None)
}
