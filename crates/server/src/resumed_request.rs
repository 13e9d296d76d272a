//! The last request for an endpoint that an earlier server carried out.

use crate::control_endpoint::ControlEndpoint;
use crate::numbered::Numbered;

/// The number of the last request in a resumed session, and of the endpoint that it opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResumedRequest {
    last: Option<(u32, u32)>,
}

impl ResumedRequest {
    /// Finds the last request among the endpoints of a resumed session.
    pub(crate) fn of(endpoints: &Numbered<ControlEndpoint>) -> ResumedRequest {
        let opened = endpoints.all().filter(|(_, one)| one.sequence != 0);
        ResumedRequest { last: opened.map(|(number, one)| (one.sequence, number)).max() }
    }

    /// Returns the endpoint, and its port, if an earlier server carried this request out. That can
    /// only be the last one: an application waits for each answer.
    pub(crate) fn answer(
        self,
        sequence: u32,
        endpoints: &Numbered<ControlEndpoint>,
    ) -> Option<(u32, u32)> {
        let (_, number) = self.last.filter(|(last, _)| *last == sequence)?;
        Some((number, endpoints.get(number)?.rule.port.map_or(0, u32::from)))
    }
}

#[cfg(test)]
mod tests {
    use towpath_packet::FlowRule;

    use super::*;

    #[test]
    fn a_resumed_session_knows_its_last_request() {
        let mut endpoints = Numbered::new(4);
        for (number, sequence) in [(0, 5), (2, 6), (3, 0)] {
            let rule = FlowRule { port: Some(7), ..FlowRule::default() };
            endpoints.enter(number, ControlEndpoint { sequence, ..ControlEndpoint::of_rule(rule) });
        }
        let request = ResumedRequest::of(&endpoints);
        assert_eq!(request.answer(6, &endpoints), Some((2, 7)));
        assert_eq!(request.answer(5, &endpoints), None, "an application waits for each answer");
        assert_eq!(request.answer(0, &endpoints), None);
        endpoints.remove(2);
        assert_eq!(request.answer(6, &endpoints), None, "it is closed");
    }
}
