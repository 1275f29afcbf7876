//! The settings of a run, from the configuration that its folder keeps.

use std::path::Path;

use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::series::Layout;
use refrain_forecast::models::classifiers;
use refrain_forecast::settings::Values;
use refrain_forecast::tasks::forecasting::Objective;
use refrain_forecast::tasks::forecasting::loss::Loss;
use serde::Serialize;
use serde_json::{Value, json};

use super::Task;
use super::list::MODEL;
use crate::error::{Error, Result};
use crate::run_config::{Classes, Forecasts, RunConfig, TaskConfig, task_of};
use crate::tasks::as_json;

/// The settings of the run with this configuration, of any version. `path` is its name in messages.
pub fn settings_of(kept: Value, path: &Path) -> Result<Values> {
    // Beside the weights, a checkpoint keeps it with what else it needs.
    let mut kept = match kept {
        Value::Object(mut all) if all.get("config").is_some_and(Value::is_object) => {
            all.remove("config").unwrap_or_default()
        }
        kept => kept,
    };
    match task_of(&kept) {
        Task::Forecasting => forecasting(config_of(kept, path)?),
        Task::Classification => {
            // The folder of a fold keeps these beside the configuration of the run.
            if let Value::Object(all) = &mut kept {
                all.retain(|name, _| !["fold", "scaler"].contains(&name.as_str()));
            }
            classification(config_of(kept, path)?)
        }
    }
}

/// The configuration. A key that it does not have is refused, since it would change nothing.
fn config_of<T: TaskConfig>(kept: Value, path: &Path) -> Result<RunConfig<T>> {
    let config = RunConfig::from_kept(kept.clone(), path)?;
    match unknown_key(&kept, &as_json(&config)?) {
        None => Ok(config),
        Some(key) => Err(Error::run(path, format!("unknown key `{key}`"), "remove it, or correct its name")),
    }
}

/// The first key that only the one object has, unless its value is that of a key that is left out.
fn unknown_key(kept: &Value, known: &Value) -> Option<String> {
    let (Value::Object(kept), Value::Object(known)) = (kept, known) else { return None };
    kept.iter().find_map(|(name, value)| match known.get(name) {
        Some(known) => unknown_key(value, known).map(|inner| format!("{name}.{inner}")),
        None => (![Value::Null, json!(0), json!([])].contains(value)).then(|| name.clone()),
    })
}

fn forecasting(config: RunConfig<Forecasts>) -> Result<Values> {
    let RunConfig {
        task: Forecasts { data, model, loss, intervals, freeze, pretraining },
        training,
        precision,
        ..
    } = config;
    let (window, columns) = (model.window(), data.columns);
    let layout = if data.independent { Layout::Independent } else { Layout::Grid };
    let own = values(json!({
        MODEL: model.name(), "context": window.context, "horizon": window.horizon, "precision": precision,
        "data": data.source, "max-gap": data.max_gap, "strict": data.strict, "layout": layout, "split": data.split,
        "season": data.season, "scaling": data.scaling, "id-column": columns.id, "time-column": columns.time,
        "target": columns.value, "past": data.covariates.past, "future": data.covariates.future,
        "static": data.covariates.statics, "calendar": data.covariates.calendar, "freeze": freeze,
    }));
    let pretraining = match pretraining {
        Some(ratio) => values(json!({ "task": Objective::Pretrain, "mask-ratio": ratio })),
        None => Values::new(),
    };
    let parts = [
        own,
        pretraining,
        of_loss(&loss)?,
        fields(&intervals)?,
        fields(&training)?,
        of_dialect(data.dialect)?,
    ];
    Ok(model.values().into_iter().chain(parts.into_iter().flatten()).collect())
}

fn classification(config: RunConfig<Classes>) -> Result<Values> {
    let RunConfig { task: Classes { data, model }, training, precision, .. } = config;
    let (options, folds, model) =
        (data.options, data.folds, serde_json::to_value(model).map_err(Error::Json)?);
    let own = values(json!({
        MODEL: model["name"], "precision": precision, "data": data.source, "max-gap": options.max_gap,
        "price": options.price, "label-horizon": options.rule.horizon, "label-threshold": options.rule.threshold,
        "label-change": options.rule.change, "folds": folds.folds, "test-share": folds.test,
        "validation-share": folds.validation, "embargo": folds.embargo, "class-weights": data.class_weights,
    }));
    let listings = classifiers();
    let settings =
        listings.iter().filter(|listing| model["name"] == listing.name).flat_map(|of| &of.settings);
    let of_model = settings.map(|of| (of.name().to_owned(), model[of.name().replace('-', "_")].clone()));
    Ok(of_model.chain(own).chain(fields(&training)?).chain(of_dialect(options.dialect)?).collect())
}

/// The name of a loss, and its own settings under names that begin with it.
fn of_loss(loss: &Loss) -> Result<Values> {
    let all = serde_json::to_value(loss).map_err(Error::Json)?;
    let before = format!("{}-", loss.name());
    let own = Loss::settings().into_iter().filter_map(|setting| {
        let field = setting.name().strip_prefix(&before)?.replace('-', "_");
        Some((setting.name().to_owned(), all[field].clone()))
    });
    Ok(std::iter::once(("loss".to_owned(), json!(loss.name()))).chain(own).collect())
}

/// How files are read. Whether times are local days, the training data of the next run says itself.
fn of_dialect(dialect: Dialect) -> Result<Values> {
    fields(&Dialect { local_days: None, ..dialect })
}

/// The fields of a configuration as settings.
fn fields(config: &impl Serialize) -> Result<Values> {
    let all = values(serde_json::to_value(config).map_err(Error::Json)?);
    Ok(all.into_iter().map(|(name, value)| (name.replace('_', "-"), value)).collect())
}

fn values(object: Value) -> Values {
    match object {
        Value::Object(values) => values,
        _ => Values::new(),
    }
}
