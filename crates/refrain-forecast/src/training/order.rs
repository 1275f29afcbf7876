//! The order of the samples of an epoch, kept on the device.

use crate::{Error, Result};
use refrain::{DType, Device, Tensor};

/// The sample numbers in the order of an epoch, and a cursor that each step advances. Both are on the device, so that
/// a step can be replayed without input from the host.
pub(crate) struct Order {
    numbers: Tensor, // i64 [count]
    cursor: Tensor,  // i64 [1]
    count: usize,
    batch: usize,
    /// 0, 1, .. for a full batch, and for the smaller last batch.
    places: [Tensor; 2],
}

impl Order {
    /// For epochs of `count` samples in batches of `batch`.
    pub(crate) fn new(count: usize, batch: usize, device: &Device) -> Result<Order> {
        if batch == 0 {
            let problem = "the batch size is 0".to_owned();
            return Err(Error::Training { problem, fix: "use at least one sample per step" });
        }
        let places = |n: usize| Tensor::arange(0.0, n as f64, 1.0, DType::I64, device);
        Ok(Order {
            numbers: Tensor::zeros([count], DType::I64, device)?,
            cursor: Tensor::zeros([1], DType::I64, device)?,
            count,
            batch,
            places: [places(batch.min(count))?, places(count % batch)?],
        })
    }

    /// The number of steps of an epoch.
    pub(crate) fn steps(&self) -> usize {
        self.count.div_ceil(self.batch)
    }

    /// The number of full batches of an epoch.
    pub(crate) fn whole(&self) -> usize {
        self.count / self.batch
    }

    /// Starts an epoch at a step.
    pub(crate) fn begin(&self, numbers: &[i64], step: usize) -> Result<()> {
        self.numbers.write_from(numbers)?;
        Ok(self.cursor.fill((step * self.batch) as f64)?)
    }

    /// The argument of [`Order::next`] at a step: it has as many places as the batch has samples.
    pub(crate) fn places(&self, step: usize) -> &Tensor {
        &self.places[usize::from(step >= self.whole())]
    }

    /// The numbers of the next samples, i64 `[B]`, as many as there are places. Advances the cursor.
    pub(crate) fn next(&self, places: &Tensor) -> Result<Tensor> {
        let numbers = self.numbers.index_select(0, &places.add(&self.cursor)?)?;
        self.cursor.add_scalar_assign(places.numel() as f64)?;
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain::Step;

    #[test]
    fn replays_take_what_comes_next_and_an_epoch_begins_where_it_is_told() {
        let device = Device::cpu();
        let order = Order::new(7, 3, &device).unwrap();
        assert_eq!((order.steps(), order.whole()), (3, 2));
        let mut step = Step::new(&device, |places| Ok(vec![order.next(&places[0])?]));
        for (first, expected) in [(0, vec![6, 5, 4, 3, 2, 1, 0]), (1, vec![3, 2, 1, 0])] {
            order.begin(&[6, 5, 4, 3, 2, 1, 0], first).unwrap();
            let mut taken = Vec::new();
            for at in first..order.steps() {
                let outputs = step.call(&[order.places(at).clone()]).unwrap();
                taken.extend(outputs.to_vec::<i64>(0).unwrap());
            }
            assert_eq!(taken, expected);
        }
        // An epoch shorter than a batch.
        let small = Order::new(2, 5, &device).unwrap();
        small.begin(&[1, 0], 0).unwrap();
        assert!(Order::new(2, 0, &device).is_err());
        assert_eq!(small.next(small.places(0)).unwrap().to_vec::<i64>().unwrap(), [1, 0]);
    }
}
