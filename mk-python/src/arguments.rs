//! Arguments and results of a call: by position or by name, a tensor or a list of them.

use crate::{errors::Class, function::Function, tensor::Torch};
use pyo3::{
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};

impl Function {
    /// The arguments of a call as a tensor per rank of this process and parameter.
    pub(crate) fn arguments<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        let tensors = self.signature.program().tensors();
        let ranks = self.place().local().len();
        let wrong = |what: String| Class::Argument.error(py, what);
        let mut by_rank = vec![Vec::with_capacity(tensors.len()); ranks];
        let mut named = 0;
        for (i, tensor) in tensors.iter().enumerate() {
            let by_name = match kwargs {
                Some(kwargs) => kwargs.get_item(&tensor.name)?,
                None => None,
            };
            named += usize::from(by_name.is_some());
            let given = match (args.get_item(i).ok(), by_name) {
                (Some(_), Some(_)) => {
                    return Err(wrong(format!("`{}` is given twice", tensor.name)));
                }
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => {
                    let all = self.signature.parameters();
                    return Err(wrong(format!(
                        "`{}` is not given; the tensors are {all}",
                        tensor.name
                    )));
                }
            };
            self.spread(&tensor.name, given, &mut by_rank)?;
        }
        let extra = kwargs.map_or(0, |k| k.len()) - named;
        let unknown = kwargs.filter(|_| extra > 0).and_then(|kwargs| {
            let known = |k: &String| tensors.iter().any(|t| t.name == *k);
            kwargs.keys().iter().filter_map(|k| k.extract::<String>().ok()).find(|k| !known(k))
        });
        if let Some(name) = unknown {
            let all = self.signature.parameters();
            return Err(wrong(format!("there is no tensor `{name}`; the tensors are {all}")));
        }
        if args.len() > tensors.len() || extra > 0 {
            let all = self.signature.parameters();
            return Err(wrong(format!("there are more arguments than tensors, which are {all}")));
        }
        Ok(by_rank)
    }

    /// Adds what each rank of this process has of an argument.
    fn spread<'py>(
        &self,
        name: &str,
        given: Bound<'py, PyAny>,
        by_rank: &mut [Vec<Bound<'py, PyAny>>],
    ) -> PyResult<()> {
        if let [only] = by_rank {
            only.push(given);
            return Ok(());
        }
        let wrong = |is: String| {
            let what = format!("`{name}` is {is}, and must be a list of {} tensors", by_rank.len());
            Class::Argument.error(given.py(), what)
        };
        let is_list = given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>();
        if !is_list {
            return Err(wrong(format!("a {}", given.get_type().fully_qualified_name()?)));
        }
        let list: Vec<Bound<'py, PyAny>> = given.extract()?;
        if list.len() != by_rank.len() {
            return Err(wrong(format!("a list of {}", list.len())));
        }
        by_rank.iter_mut().zip(list).for_each(|(tensors, one)| tensors.push(one));
        Ok(())
    }

    /// The results of each rank of this process: the caller's, or new ones.
    pub(crate) fn outputs<'py>(
        &self,
        py: Python<'py>,
        torch: &Torch,
        out: Option<&Bound<'py, PyAny>>,
        results: &[Vec<(mk::abi::DType, Vec<u64>)>],
    ) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        let Some(out) = out else {
            let ranks = self.place().local().zip(results);
            return ranks
                .map(|(rank, results)| {
                    let device = self.place().gpu(py, rank)?;
                    results.iter().map(|(dtype, s)| torch.empty(py, *dtype, s, device)).collect()
                })
                .collect();
        };
        let mut by_rank = vec![Vec::new(); results.len()];
        match results.first().map_or(1, Vec::len) {
            1 => self.spread("out", out.clone(), &mut by_rank)?,
            n => {
                let all: Vec<Bound<'py, PyAny>> = out.extract()?;
                if all.len() != n {
                    let what = format!("`out` has {} of {n} results", all.len());
                    return Err(Class::Argument.error(py, what));
                }
                all.into_iter().try_for_each(|one| self.spread("out", one, &mut by_rank))?;
            }
        }
        Ok(by_rank)
    }

    /// Results as a caller wants them: one tensor, or a tuple of several; in lists by rank if there are several here.
    pub(crate) fn gathered<'py>(
        &self,
        py: Python<'py>,
        by_rank: Vec<Vec<Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let n = by_rank.first().map_or(0, Vec::len);
        let mut results = Vec::with_capacity(n);
        for i in 0..n {
            let mut of_ranks: Vec<_> = by_rank.iter().filter_map(|r| r.get(i).cloned()).collect();
            results.push(match of_ranks.len() {
                1 => of_ranks.remove(0),
                _ => PyList::new(py, of_ranks)?.into_any(),
            });
        }
        match results.len() {
            1 => Ok(results.remove(0)),
            _ => Ok(PyTuple::new(py, results)?.into_any()),
        }
    }
}
